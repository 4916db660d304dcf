"""The progress bar of training: where it is, how fast in samples per second, when it will be done."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from tqdm.auto import tqdm
from transformers.trainer_callback import ProgressCallback

__all__ = ["TrainingBar"]

WINDOW = 20
"""Steps the speed is averaged over: long enough to be steady, short enough to show a change."""


class TrainingBar(ProgressCallback):  # type: ignore[misc]
    """transformers' bar with samples/s, the loss and a steady ETA."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.current_step = state.global_step
        self._per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._times: deque[float] = deque([time.monotonic()], maxlen=WINDOW + 1)
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                dynamic_ncols=True,
                desc="training",
                unit="step",
                mininterval=0.5,
                bar_format="{desc}: {percentage:3.0f}%|{bar:24}| step {n_fmt}/{total_fmt}{postfix} "
                "[{elapsed} gone, {remaining} to go]",
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._times.append(time.monotonic())
            speed = self._per_step * (len(self._times) - 1) / max(self._times[-1] - self._times[0], 1e-9)
            self.training_bar.set_postfix_str(f"{speed:.1f} samples/s", refresh=False)
        super().on_step_end(args, state, control, **kwargs)
