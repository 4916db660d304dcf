"""`plough.TrainingArguments`: transformers' own, with the CPU flags that used to work working again.

Each override is here with its reason; everything else is transformers'. Knows nothing of the Trainer.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field
from functools import cached_property

import torch
from transformers.training_args import TrainingArguments as _TransformersArguments

from plough.contract import Env, WorkerIdentity
from plough.errors import RanksAloneError, UsageError
from plough.train import compat
from plough.train.group import ensure_group, torch_backend
from plough.train.inforce import identity_of_this_process

__all__ = ["TrainingArguments"]

logger = logging.getLogger(__name__)


@dataclass
class TrainingArguments(_TransformersArguments):  # type: ignore[misc]
    """transformers.TrainingArguments for CPUs first; the same on GPUs.

    Raises UsageError for what cannot happen as asked (`--fp16` on a CPU, say), LaunchError or
    RanksAloneError when the ranks that were started do not come together.
    """

    ddp_backend: str | None = field(
        default=None,
        metadata={
            "help": "What ranks talk over. Default: the best there is for the device. `ccl` is Plough's own "
            "between CPUs.",
            "choices": ["ccl", "nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"],
        },
    )
    ddp_bucket_cap_mb: int | None = field(
        default=None,
        metadata={
            "help": "MiB of gradients that ranks average together. Default: what `plough tune` found for "
            "this machine, else torch's own, 25."
        },
    )
    no_cuda: bool = field(
        default=False, metadata={"help": "Train on the CPU although there is an accelerator; as --use_cpu."}
    )
    use_ipex: bool = field(
        default=False,
        metadata={
            "help": "Accepted from old command lines. Intel's extension is archived; Plough's placement, "
            "allocator and precision settings are on with or without it."
        },
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={
            "help": "Train into a folder that already holds a finished run. Without it that is an error."
        },
    )
    warmup_ratio: float | None = field(
        default=None, metadata={"help": "Share of all steps to warm the learning rate up over, 0 to 1."}
    )
    group_by_length: bool = field(
        default=False,
        metadata={"help": "Batch samples of like length; as --train_sampling_strategy group_by_length."},
    )

    def __post_init__(self) -> None:
        # Without an accelerator there is one place to train, whether it was named or not. transformers
        # leaves ranks alone with all the data unless use_cpu is given.
        if self.no_cuda or not torch.accelerator.is_available():
            self.use_cpu = True
        if self.use_cpu:
            self._check_precision()
            self.dataloader_pin_memory = False  # there is no device to copy to
        if self.warmup_ratio is not None and not 0 <= self.warmup_ratio <= 1:
            raise UsageError(f"--warmup_ratio {self.warmup_ratio}: a share of the steps lies between 0 and 1")
        if self.ddp_bucket_cap_mb is None:
            self.ddp_bucket_cap_mb = _bucket_from_env()
        if self.group_by_length:
            self.train_sampling_strategy = "group_by_length"
        if self.use_ipex:
            _say_once("--use_ipex: Intel's extension is archived; Plough's own settings stand in for it")
        super().__post_init__()

    def _check_precision(self) -> None:
        for flag in ("fp16", "fp16_full_eval"):
            if getattr(self, flag):
                raise UsageError(
                    f"--{flag}: CPUs have no fp16 training in PyTorch; transformers would compute in fp32 "
                    "without a word",
                    hint=f"use --{flag.replace('fp16', 'bf16')}, or leave it out",
                )

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of linear warm-up out of `num_training_steps`; --warmup_steps wins over --warmup_ratio."""
        if self.warmup_ratio is not None and not self.warmup_steps:
            return math.ceil(num_training_steps * self.warmup_ratio)
        steps: int = super().get_warmup_steps(num_training_steps)
        return steps

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Form the group ourselves, with the timeout and backend that were asked for.

        accelerate reuses a group that exists. Left to itself it turns every CPU backend into gloo
        without a word, and ignores ddp_timeout.
        """
        identity = identity_of_this_process()
        wanted = self.ddp_backend
        if self.use_cpu:
            if identity.world_size > 1:
                ensure_group(identity, torch_backend(wanted, "cpu"), self.ddp_timeout_delta)
            self.ddp_backend = None  # accelerate would look for a group even for a process alone
        try:
            device: torch.device = super()._setup_devices
        finally:
            self.ddp_backend = wanted
        _check_mode(self, identity)
        return device


def _bucket_from_env() -> int | None:
    """What `plough tune` found best here, or the user set for all scripts; None leaves it to torch."""
    text = os.environ.get(Env.PLOUGH_BUCKET_MB)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{Env.PLOUGH_BUCKET_MB}={text!r} is not a positive whole number",
            hint="unset it, or set it to the size of a bucket of gradients in MiB",
        )
    return int(text)


def _check_mode(arguments: TrainingArguments, identity: WorkerIdentity) -> None:
    """accelerate must have understood that there are others."""
    seen = arguments.distributed_state.num_processes if arguments.distributed_state is not None else 1
    if seen != identity.world_size and identity.world_size > 1:
        raise RanksAloneError(
            f"{identity.launcher} started {identity.world_size} ranks, and accelerate sees {seen}",
            hint="do not set ACCELERATE_USE_CPU, or use_configured_state in accelerator_config, by hand",
        )


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said and identity_of_this_process().rank == 0:
        _said.add(text)
        logger.warning(text)


compat.offer("transformers.training_args", "TrainingArguments", TrainingArguments)
