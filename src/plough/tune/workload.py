"""What is trained to measure a setting, and its flags: the same for `plough tune` and for its ranks.

Knows no torch: of a model it looks only whether the folder is there.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import msgspec

from plough.errors import ModelError, UsageError

__all__ = ["Workload", "add_workload_arguments", "workload_of"]

PRECISIONS = ("fp32", "bf16")
FOLDERS = (".", "/", "~")


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """model: a folder, or a name on the model hub; its configuration is all that is read.

    seq: tokens of a sample. batch: samples of a rank. steps: timed for each setting; None: as many as
    `seconds` have room for.
    """

    model: str
    seq: int = 384
    batch: int = 12
    precision: str = "fp32"
    steps: int | None = None
    seconds: float = 10.0

    @property
    def title(self) -> str:
        """A short name of the model: of a folder, the end of its path."""
        if not self.model.startswith(FOLDERS):
            return self.model
        return "/".join(Path(self.model).absolute().parts[-2:])

    def arguments(self) -> list[str]:
        """The flags that `workload_of` reads back to this."""
        words = ["--model", self.model, "--seq", str(self.seq), "--batch", str(self.batch)]
        words += ["--precision", self.precision, "--seconds-per-setting", f"{self.seconds:g}"]
        return words if self.steps is None else [*words, "--steps", str(self.steps)]


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train while measuring")
    group.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="a model folder, or a name on the model hub; its config.json is enough",
    )
    group.add_argument("--seq", type=int, default=384, metavar="N", help="tokens of a sample (default: 384)")
    group.add_argument("--batch", type=int, default=12, metavar="N", help="samples of a rank (default: 12)")
    group.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="bf16: autocast, as --bf16 (default: fp32)"
    )
    group.add_argument(
        "--seconds-per-setting",
        type=float,
        default=10.0,
        metavar="S",
        help="time for the steps of each setting, about; starting its ranks comes on top (default: 10)",
    )
    group.add_argument("--steps", type=int, metavar="N", help="steps of each setting, however long they take")


def workload_of(options: argparse.Namespace) -> Workload:
    """Raises UsageError for what cannot be measured, ModelError for a folder that holds no model."""
    for flag in ("seq", "batch", "steps"):
        value = getattr(options, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag} {value}: at least 1 is needed")
    seconds = options.seconds_per_setting
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds-per-setting {seconds:g}: must be more than 0")
    _check_folder(options.model)
    return Workload(
        model=options.model,
        seq=options.seq,
        batch=options.batch,
        precision=options.precision,
        steps=options.steps,
        seconds=seconds,
    )


def _check_folder(model: str) -> None:
    path = Path(model)
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"--model {model}: the folder has no config.json, so it holds no transformers model",
                hint="give the folder that save_pretrained or a training run wrote",
            )
    elif path.exists() or model.startswith(FOLDERS) or model.count("/") > 1 or not model:
        raise ModelError(
            f"--model {model}: no such model folder", hint="give a folder, or a name on the model hub"
        )
