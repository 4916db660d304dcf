"""`plough.Trainer`: transformers' own, which refuses to train what was not launched and says what ran.

Few overrides, each with its reason. Everything about speed and parallel axes has modules of its own.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import msgspec
from transformers.trainer import Trainer as _TransformersTrainer
from transformers.trainer_callback import ProgressCallback, TrainerCallback

from plough._version import __version__
from plough.contract import Contract, Env
from plough.files import staged_folder, write_json_atomic, write_text_atomic
from plough.train import compat
from plough.train.group import check_group
from plough.train.guard import active_guard
from plough.train.inforce import identity_of_this_process
from plough.train.progress import TrainingBar

__all__ = ["Trainer"]


class Trainer(_TransformersTrainer):  # type: ignore[misc]
    """transformers.Trainer for CPUs first; the same on GPUs.

    `train` raises RanksAloneError or ContractError when the group is not the one that was launched.
    A saved folder also holds training_args.json and plough.json (the contract and plan of the run).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(TrainingBar)
        self.add_callback(_TellGuard)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        check_group(identity_of_this_process())
        return super().train(*args, **kwargs)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """In order, always: transformers groups evaluation by length too, and predictions come back in
        another order than the data they are for."""
        strategy = self.args.train_sampling_strategy
        self.args.train_sampling_strategy = "random"
        try:
            return super()._get_eval_sampler(eval_dataset)
        finally:
            self.args.train_sampling_strategy = strategy

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        # The losses since the last log: logged ones are means over all ranks, but transformers adds the rest
        # as this rank has them, and the train_loss of rank 0 is not the job's.
        self._tr_loss: Any = self.accelerator.reduce(self._tr_loss, reduction="mean")
        return super()._finalize_training(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = output_dir or self.args.output_dir
        if not self.args.should_save:
            super()._save(folder, state_dict)  # collective for models sharded at load time
            return
        # A full disk must not cost the model that was there before.
        with staged_folder(folder) as staging:
            super()._save(str(staging), state_dict)
            save_run(staging, self.args)


# Libraries read these signatures to learn what the installed Trainer takes.
functools.update_wrapper(Trainer.__init__, _TransformersTrainer.__init__)
functools.update_wrapper(Trainer.train, _TransformersTrainer.train)


class _TellGuard(TrainerCallback):  # type: ignore[misc]
    """Hands the end-of-job block what only the Trainer knows."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        guard = active_guard()
        if guard is not None:
            guard.look_at_group()
            guard.precision = "bf16 autocast, fp32 weights" if args.bf16 else "fp32"
            guard.bucket_mb = args.ddp_bucket_cap_mb

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        guard = active_guard()
        if guard is not None and "train_samples_per_second" in (logs or {}):
            guard.samples_per_second = float(logs["train_samples_per_second"])


def save_run(folder: Path, arguments: Any) -> None:
    """Leave what is needed to repeat the run: the arguments as text, and where its ranks were placed."""
    write_text_atomic(folder / "training_args.json", arguments.to_json_string() + "\n")
    contract = Contract.from_env(os.environ)
    plan = Path(os.environ.get(Env.PLOUGH_JOB_DIR, "")) / "plan.json"
    record = {
        "plough": __version__,
        "contract": msgspec.to_builtins(contract),
        "plan": json.loads(plan.read_text()) if Env.PLOUGH_JOB_DIR in os.environ and plan.exists() else None,
    }
    write_json_atomic(folder / "plough.json", record)


compat.offer("transformers.trainer", "Trainer", Trainer)
