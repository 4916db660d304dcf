"""bf16 on a CPU: autocast is really in force inside the model, and what is kept is fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from plough import Trainer, TrainingArguments
from tests.train.helpers import arguments_for, losses, qa_rows, tiny_bert


class Spy(TrainerCallback):
    """Types of gradients and optimizer state when the optimizer is about to step and has stepped."""

    def __init__(self) -> None:
        self.gradients: set[torch.dtype] = set()
        self.state: set[torch.dtype] = set()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gradients |= {p.grad.dtype for p in kwargs["model"].parameters() if p.grad is not None}

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        held = kwargs["optimizer"].state.values()
        self.state |= {t.dtype for s in held for t in s.values() if torch.is_tensor(t) and t.numel() > 1}


@pytest.mark.parametrize("bf16", [True, False])
def test_what_computes_in_which_type(bf16: bool, tmp_path: Path) -> None:
    model, spy = tiny_bert(), Spy()
    outputs: set[torch.dtype] = set()
    linear = model.bert.encoder.layer[0].intermediate.dense
    linear.register_forward_hook(lambda _m, _i, output: outputs.add(output.dtype))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments_for(tmp_path, bf16=bf16, max_steps=3)),
        train_dataset=qa_rows(12),
        callbacks=[spy],
    )
    trainer.train()
    assert outputs == {torch.bfloat16 if bf16 else torch.float32}
    assert spy.gradients == {torch.float32}
    assert spy.state == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len(losses(trainer.state.log_history)) == 3

    outputs.clear()
    trainer.predict(qa_rows(4))
    assert outputs == {torch.bfloat16 if bf16 else torch.float32}
