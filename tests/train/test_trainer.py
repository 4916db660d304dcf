"""What people do with transformers' Trainer, done with Plough's: one process, a tiny model, seconds."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer import Trainer as TransformersTrainer
from transformers.trainer_callback import ProgressCallback

from plough import Trainer, TrainingArguments
from plough.train.progress import TrainingBar
from tests.train.helpers import arguments_for, losses, qa_rows, tiny_bert


def make(folder: Path, *, model: Any = None, rows: int = 32, **settings: Any) -> Trainer:
    evaluated = settings.get("eval_strategy", "no") != "no"
    extra = {k: settings.pop(k) for k in ("callbacks", "compute_metrics") if k in settings}
    return Trainer(
        model=model or tiny_bert(),
        args=TrainingArguments(**arguments_for(folder, **settings)),
        train_dataset=qa_rows(rows),
        eval_dataset=qa_rows(8, seed=99) if evaluated else None,
        **extra,
    )


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name, value in ours.items() if not torch.equal(value, theirs[name])] == []


def test_signatures_are_those_of_transformers() -> None:
    for name in ("__init__", "train", "evaluate", "save_model"):
        assert inspect.signature(getattr(Trainer, name)) == inspect.signature(
            getattr(TransformersTrainer, name)
        )
    assert Trainer.__module__ == "plough.train.trainer"
    assert pickle.loads(pickle.dumps(Trainer)) is Trainer


def test_same_losses_and_weights_as_transformers_own(tmp_path: Path) -> None:
    runs = []
    for kind in (Trainer, TransformersTrainer):
        arguments = TrainingArguments(**arguments_for(tmp_path, num_train_epochs=2))
        trainer = kind(model=tiny_bert(dropout=0.1), args=arguments, train_dataset=qa_rows(32))
        trainer.train()
        runs.append((losses(trainer.state.log_history), weights(trainer.model)))
    assert len(runs[0][0]) == 16
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])


def test_subclass_with_its_own_loss_and_optimizer(tmp_path: Path) -> None:
    class Doubled(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            outputs = model(**inputs)
            return (2 * outputs.loss, outputs) if return_outputs else 2 * outputs.loss

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
            return self.optimizer

    trained = {}
    for kind in (Doubled, Trainer):
        arguments = TrainingArguments(**arguments_for(tmp_path, max_steps=4, learning_rate=0.0))
        trainer = kind(model=tiny_bert(), args=arguments, train_dataset=qa_rows(16))
        trainer.train()
        trained[kind] = losses(trainer.state.log_history)
    assert trained[Doubled] == pytest.approx([2 * value for value in trained[Trainer]], rel=1e-6)


def test_callbacks_are_called_and_early_stopping_stops(tmp_path: Path) -> None:
    seen: list[str] = []

    class Count(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append("step")

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append("evaluate")

    trainer = make(
        tmp_path,
        rows=64,
        learning_rate=0.0,  # nothing improves
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        callbacks=[Count(), EarlyStoppingCallback(early_stopping_patience=2)],
    )
    trainer.train()
    assert trainer.state.global_step == 6  # the first evaluation and two that are no better
    assert seen.count("step") == 6
    assert seen.count("evaluate") == 3


def test_progress_bar_is_ours_unless_there_is_none(tmp_path: Path) -> None:
    def kinds(trainer: Trainer) -> set[type]:
        return {type(c) for c in trainer.callback_handler.callbacks}

    assert TrainingBar in kinds(make(tmp_path, disable_tqdm=False))
    assert ProgressCallback not in kinds(make(tmp_path, disable_tqdm=False))
    assert TrainingBar not in kinds(make(tmp_path, disable_tqdm=True))


def test_progress_bar_says_speed_and_survives_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(tmp_path, max_steps=3, disable_tqdm=False, eval_strategy="steps", eval_steps=2)
    trainer.train()
    text = capsys.readouterr().err
    assert "training: 100%" in text
    assert "step 3/3" in text
    assert "samples/s" in text


def test_compute_metrics_and_best_model_at_end(tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []
    scripted = iter([0.1, 0.9, 0.3, 0.2])

    def metrics(prediction: Any) -> dict[str, float]:
        calls.append(prediction.predictions[0].shape)
        return {"score": next(scripted)}

    kept: dict[int, dict[str, torch.Tensor]] = {}

    class Keep(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kept[state.global_step] = weights(kwargs["model"])

    trainer = make(
        tmp_path,
        max_steps=8,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        compute_metrics=metrics,
        callbacks=[Keep()],
    )
    trainer.train()
    assert calls == [(8, 16)] * 4
    assert trainer.state.best_metric == 0.9
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert_same(weights(trainer.model), kept[4])


def test_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 4,
        "gradient_accumulation_steps": 2,
        "warmup_ratio": 0.3,
    }
    whole = make(tmp_path / "whole", model=tiny_bert(dropout=0.1), rows=40, **settings)
    whole.train()
    resumed = make(tmp_path / "resumed", model=tiny_bert(dropout=0.1, seed=5), rows=40, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert len(losses(whole.state.log_history)) == 10
    assert losses(resumed.state.log_history) == losses(whole.state.log_history)
    assert_same(weights(resumed.model), weights(whole.model))


def test_gradient_accumulation_is_a_larger_batch(tmp_path: Path) -> None:
    large = make(tmp_path, max_steps=4, per_device_train_batch_size=8)
    parts = make(tmp_path, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    for trainer in (large, parts):
        trainer.train()
    assert losses(parts.state.log_history) == pytest.approx(losses(large.state.log_history), abs=1e-5)


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_checkpointing_activations_changes_nothing_but_memory(name: str, tmp_path: Path) -> None:
    calls = []
    runs = []
    for on in (False, True):
        model = tiny_bert(dropout=0.1)
        layer = model.bert.encoder.layer[0].intermediate.dense
        layer.register_forward_pre_hook(lambda _m, _i, on=on: calls.append(on))
        trainer = make(tmp_path, model=model, max_steps=3, **{name: on})
        trainer.train()
        runs.append(losses(trainer.state.log_history))
    assert calls.count(True) == 2 * calls.count(False) == 6  # each layer is computed again on the way back
    assert runs[0] == runs[1]


def test_data_loading_workers(tmp_path: Path) -> None:
    runs = []
    for workers in (0, 2):
        trainer = make(tmp_path, max_steps=6, dataloader_num_workers=workers)
        trainer.train()
        runs.append(losses(trainer.state.log_history))
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_torch_compile(tmp_path: Path) -> None:
    runs = []
    for on in (False, True):
        trainer = make(tmp_path, max_steps=3, torch_compile=on)
        trainer.train()
        runs.append(losses(trainer.state.log_history))
    assert runs[1] == pytest.approx(runs[0], abs=1e-4)


def test_a_large_drop_in_loss_shows_that_it_learns(tmp_path: Path) -> None:
    trainer = make(tmp_path, rows=64, num_train_epochs=25, learning_rate=5e-3)
    trainer.train()
    found = losses(trainer.state.log_history)
    assert np.mean(found[-10:]) < 0.5 * np.mean(found[:10])


def test_saved_folder_loads_with_plain_transformers(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=2, warmup_ratio=0.5, group_by_length=True)
    trainer.train()
    trainer.save_model()
    script = (
        "import sys; from transformers import BertForQuestionAnswering as M\n"
        "m, info = M.from_pretrained(sys.argv[1], output_loading_info=True)\n"
        "assert not any(info.values()), info\n"
        "assert not [n for n in sys.modules if n.split('.')[0] == 'plough']\n"
        "print(sum(float(p.detach().double().sum()) for p in m.parameters()))\n"
    )
    # As where Plough is not installed: torch does not look for its backend.
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) == sum(float(p.detach().double().sum()) for p in trainer.model.parameters())

    record = json.loads((tmp_path / "plough.json").read_text())
    assert record == {"plough": record["plough"], "contract": None, "plan": None}
    saved = json.loads((tmp_path / "training_args.json").read_text())
    assert saved["warmup_ratio"] == 0.5
    assert saved["group_by_length"] is True
    pickled = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert type(pickled) is TrainingArguments
    assert pickled.max_steps == 2


def test_checkpoints_hold_the_record_too(tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    present = set(os.listdir(tmp_path / "checkpoint-2"))
    assert {"training_args.json", "plough.json", "model.safetensors", "trainer_state.json"} <= present


def test_peft_lora(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    base = tiny_bert()
    before = weights(base)
    config = LoraConfig(task_type="QUESTION_ANS", r=4, target_modules=["query", "value"])
    trainer = make(tmp_path, model=get_peft_model(base, config), max_steps=6, learning_rate=1e-2)
    trainer.train()
    trainer.save_model()
    assert "adapter_model.safetensors" in os.listdir(tmp_path)
    assert "model.safetensors" not in os.listdir(tmp_path)
    again = PeftModel.from_pretrained(tiny_bert(), tmp_path)
    assert_same(weights(again), weights(trainer.model))
    plain = {n.replace(".base_layer", ""): v for n, v in base.state_dict().items() if "lora_" not in n}
    same = [n for n in before if "qa_outputs" not in n]
    assert all(torch.equal(before[n], plain[n]) for n in same)
