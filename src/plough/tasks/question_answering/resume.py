"""What to do with an output folder that is not empty: train into it, go on from it, or refuse."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from plough.errors import UsageError

__all__ = ["clear_earlier_run", "complete_checkpoints", "make_writable", "starting_point"]

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "adapter_model.safetensors",
)


def complete_checkpoints(folder: Path) -> tuple[list[Path], list[Path]]:
    """(complete, torn) checkpoints in `folder`, each oldest first.

    trainer_state.json is written last, so one without it was cut off while it was written.
    """
    complete: list[Path] = []
    torn: list[Path] = []
    found = [p for p in folder.glob("checkpoint-*") if p.name.split("-")[1].isdigit()]
    for path in sorted(found, key=lambda p: int(p.name.split("-")[1])):
        try:
            json.loads((path / "trainer_state.json").read_text())
            whole = any((path / name).exists() for name in WEIGHTS)
        except (OSError, ValueError):
            whole = False
        (complete if whole else torn).append(path)
    return complete, torn


def make_writable(folder: Path) -> None:
    """Make the output folder now: hours of training must not end in finding out that it cannot be.

    Raises UsageError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"--output_dir {folder}: cannot be written to: {error.strerror}", hint="choose a folder of yours"
        ) from error


def clear_earlier_run(folder: Path) -> list[str]:
    """Take away an earlier run's checkpoints and results, and say so.

    Left there, they would be taken for the new run's own if that one is interrupted.
    """
    complete, torn = complete_checkpoints(folder)
    for path in (*complete, *torn):
        shutil.rmtree(path)
    results = [p for p in folder.glob("*_results.json") if p.is_file()]
    for path in results:
        path.unlink()
    found = len(complete) + len(torn)
    if not found and not results:
        return []
    checkpoints = f"{found} checkpoint{'s' * (found != 1)} and " if found else ""
    return [f"{folder}: the earlier run's {checkpoints}results are overwritten"]


def starting_point(folder: Path, *, resume: str | None, overwrite: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, or None for the beginning; and what to say about it.

    resume: --resume_from_checkpoint: a folder, "True" for the newest in `folder`, "False" or None.
    Raises UsageError for a finished run without --overwrite_output_dir, or a checkpoint that is not one.
    """
    complete, torn = complete_checkpoints(folder)
    said = [f"{path}: left out, it was cut off while it was written" for path in torn]
    if resume is not None and resume.lower() not in ("true", "false"):
        path = Path(resume)
        if not (path / "trainer_state.json").exists():
            raise UsageError(
                f"--resume_from_checkpoint {resume}: not a complete checkpoint",
                hint="give a checkpoint-N folder of an earlier run",
            )
        return path, [f"going on from {path}"]
    if overwrite and (resume or "").lower() != "true":
        return None, []
    finished = folder / "train_results.json"
    if finished.exists() and not overwrite:
        raise UsageError(
            f"{folder} holds a finished run",
            hint="choose another --output_dir, or add --overwrite_output_dir to train over it",
        )
    if (resume or "").lower() == "false" or not complete:
        if (resume or "").lower() == "true":
            raise UsageError(f"--resume_from_checkpoint: {folder} holds no complete checkpoint")
        return None, said
    return complete[-1], [*said, f"going on from {complete[-1]}, where an earlier run stopped"]
