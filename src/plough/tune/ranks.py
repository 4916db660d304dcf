"""In each rank: train the model for a few steps through Plough's Trainer, and time them.

`plough tune` starts it, once for each setting, with everything about the setting in force already: what is
timed is what `plough run` would give. Rank 0 writes the result. Knows nothing of settings.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import transformers
from transformers.trainer_callback import TrainerCallback

from plough._version import __version__
from plough.errors import ModelError, UsageError
from plough.files import write_text_atomic
from plough.topology import probe
from plough.train.arguments import TrainingArguments
from plough.train.inforce import identity_of_this_process
from plough.train.trainer import Trainer
from plough.tune.measure import Timing
from plough.tune.workload import Workload, add_workload_arguments, workload_of

__all__ = ["main"]

WARM_UPS = 3
"""Steps in which memory is laid out, kernels are chosen and gradients are compared between ranks."""
PILOTS = 2
LEAST, MOST = 5, 200
"""Steps to time, whatever the time for them."""
POOL = 64
"""Different samples: their tokens say nothing, and drawing new ones would take time."""
STATE_BYTES = 16
"""Of a parameter: weight, gradient and AdamW's two moments, all fp32. Buckets hold the gradient again."""

# The end of a class name in a configuration -> the Auto class that makes such a model.
HEADS = {
    "ForQuestionAnswering": transformers.AutoModelForQuestionAnswering,
    "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
    "ForCausalLM": transformers.AutoModelForCausalLM,
    "LMHeadModel": transformers.AutoModelForCausalLM,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="plough.tune.ranks", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="where the time is written"
    )
    add_workload_arguments(parser)
    options = parser.parse_args(argv)
    # stdout belongs to the result, which the one who started the ranks prints.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    transformers.logging.set_verbosity_error()
    timing = measure(workload_of(options), options.output.parent / "trainer")
    if identity_of_this_process().rank == 0:
        write_text_atomic(options.output, msgspec.json.encode(timing).decode())
    return 0


def measure(workload: Workload, folder: Path) -> Timing:
    """Train, and say how long a step takes. Collective; the result is the same on every rank."""
    # First, so that a model that cannot be had costs no forming of a group.
    model = build_model(workload, ranks=identity_of_this_process().local_world_size)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=workload.batch,
        bf16=workload.precision == "bf16",
        max_steps=WARM_UPS + PILOTS + (workload.steps or MOST),
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock(workload)
    samples = Samples(workload, model, count=arguments.world_size * workload.batch * arguments.max_steps)
    Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[clock]).train()
    times = torch.tensor(clock.times, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(times, dist.ReduceOp.MAX)
    ms = [1000 * seconds for seconds in times.tolist()]
    tenths = quantiles(ms, n=10, method="inclusive") if len(ms) > 1 else ms * 9
    trained = [p for p in model.parameters() if p.requires_grad]
    return Timing(
        ms=round(median(ms), 3),
        p10=round(tenths[0], 3),
        p90=round(tenths[8], 3),
        steps=len(ms),
        parameters=sum(p.numel() for p in model.parameters()),
        gradient_mb=round(sum(p.numel() * p.element_size() for p in trained) / (1 << 20), 3),
        backend=dist.get_backend() if dist.is_initialized() else None,
        versions={
            "plough": __version__,
            "torch": str(torch.__version__),
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
    )


class Clock(TrainerCallback):  # type: ignore[misc]
    """Times steps after the first ones, as many as the workload asks for or its seconds have room for."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.times: list[float] = []
        self.pilots: list[float] = []
        self.wanted = workload.steps or 0
        self.last: float | None = None
        self.seen = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        took = now - self.last if self.last is not None else 0.0
        self.seen += 1
        if WARM_UPS < self.seen <= WARM_UPS + PILOTS:
            self.pilots.append(took)
        elif self.seen > WARM_UPS + PILOTS:
            self.times.append(took)
        if self.seen == WARM_UPS + PILOTS and self.workload.steps is None:
            self.wanted = self._room()
        if self.wanted and len(self.times) >= self.wanted:
            control.should_training_stop = True
        self.last = time.perf_counter()

    def _room(self) -> int:
        """The same on every rank: the slowest decides."""
        pilot = torch.tensor(min(self.pilots), dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(pilot, dist.ReduceOp.MAX)
        return min(MOST, max(LEAST, int(self.workload.seconds / max(float(pilot), 1e-6))))


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """So many samples of random tokens, with whatever labels the model's head takes."""

    def __init__(self, workload: Workload, model: Any, *, count: int) -> None:
        self.count, self.kind = count, type(model).__name__
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.get_text_config().vocab_size
        self.tokens = torch.randint(0, vocabulary, (POOL, workload.seq), generator=generator)
        self.mask = torch.ones(workload.seq, dtype=torch.long)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index % POOL]
        sample = {"input_ids": tokens, "attention_mask": self.mask}
        if self.kind.endswith("ForQuestionAnswering"):
            middle = torch.tensor(len(tokens) // 2)
            return {**sample, "start_positions": middle, "end_positions": middle}
        if self.kind.endswith("ForSequenceClassification"):
            return {**sample, "labels": torch.tensor(index % 2)}
        return {**sample, "labels": tokens}


def build_model(workload: Workload, *, ranks: int) -> Any:
    """The model with new fp32 weights, which take as long as trained ones. Raises ModelError, UsageError.

    ranks: on this host, whose memory they share.
    """
    name = workload.model
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except Exception as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"--model {name}: its configuration cannot be read: {text}",
            hint="check the spelling and the network; offline, give the path of a folder",
        ) from error
    _check_length(config, workload)
    head = _head_of(config, name)
    config.pad_token_id = 0 if getattr(config, "pad_token_id", None) is None else config.pad_token_id
    torch.manual_seed(0)
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in head.from_config(config).parameters())
        _check_memory(name, parameters, ranks)
        return head.from_config(config, dtype=torch.float32)
    except (ImportError, NotImplementedError, TypeError, ValueError) as error:
        raise ModelError(f"--model {name}: a model cannot be made from its configuration: {error}") from error


def _head_of(config: Any, name: str) -> Any:
    """The head its architecture names, else the first of HEADS that there is for such a model."""
    for architecture in config.architectures or ():
        for ending, head in HEADS.items():
            if architecture.endswith(ending):
                return head
    for head in HEADS.values():
        if type(config) in head._model_mapping:
            return head
    raise ModelError(
        f"--model {name}: a {config.model_type} model takes no text to answer, classify or continue",
        hint="`plough tune` measures with encoders and decoders of text: BERT, RoBERTa, Llama and their like",
    )


def _check_length(config: Any, workload: Workload) -> None:
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < workload.seq:
        raise UsageError(
            f"--seq {workload.seq}: {workload.title} takes at most {longest} tokens", hint=f"--seq {longest}"
        )


def _check_memory(name: str, parameters: int, ranks: int) -> None:
    """Raises ModelError before the kernel has to kill a rank."""
    machine = probe()
    there = machine.limits.memory_bytes or machine.memory_bytes
    needed = parameters * ranks * (STATE_BYTES + (4 if ranks > 1 else 0))
    if needed > there:
        raise ModelError(
            f"--model {name}: {parameters / 1e6:.0f} million parameters take {needed / 2**30:.1f} GiB in "
            f"{ranks} rank{'s' * (ranks > 1)}, activations aside, and {machine.hostname} has "
            f"{there / 2**30:.1f}",
            hint="fewer ranks, or a smaller model",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
