"""The flags of the old CPU guides parse, and mean what they meant."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import HfArgumentParser, get_linear_schedule_with_warmup
from transformers.trainer_pt_utils import LengthGroupedSampler

from plough import Trainer, TrainingArguments
from plough.contract import Env
from plough.errors import UsageError
from tests.train.helpers import arguments_for, qa_rows, tiny_bert

OLD = {
    "no_cuda": (["--no_cuda"], True),
    "use_ipex": (["--use_ipex"], True),
    "ddp_backend": (["--ddp_backend", "ccl"], "ccl"),
    "overwrite_output_dir": (["--overwrite_output_dir"], True),
    "warmup_ratio": (["--warmup_ratio", "0.1"], 0.1),
    "group_by_length": (["--group_by_length"], True),
}


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    return TrainingArguments(**arguments_for(folder, **settings))


@pytest.mark.parametrize("name", OLD)
def test_old_flag_parses(name: str, tmp_path: Path) -> None:
    flags, value = OLD[name]
    parser = HfArgumentParser(TrainingArguments)
    (found,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *flags])
    assert getattr(found, name) == value
    (absent,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path)])
    assert not getattr(absent, name)


def test_old_flags_parse_together_and_as_written_out_booleans(tmp_path: Path) -> None:
    parser = HfArgumentParser(TrainingArguments)
    flags = [flag for group, _ in OLD.values() for flag in group]
    (found,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *flags, "--bf16", "True"])
    assert {name: getattr(found, name) for name in OLD} == {name: value for name, (_, value) in OLD.items()}
    (off,) = parser.parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--group_by_length", "false", "--no_cuda", "False"]
    )
    assert not off.group_by_length
    assert not off.no_cuda
    assert off.train_sampling_strategy == "random"


def test_old_flags_parse_from_json(tmp_path: Path) -> None:
    values = {name: value for name, (_, value) in OLD.items()}
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"output_dir": str(tmp_path / "out"), **values}))
    (found,) = HfArgumentParser(TrainingArguments).parse_json_file(str(file))
    assert {name: getattr(found, name) for name in OLD} == values


def test_the_cpu_is_used_without_being_named(tmp_path: Path) -> None:
    found = arguments(tmp_path)
    if torch.accelerator.is_available():
        assert not found.use_cpu
        found = arguments(tmp_path, no_cuda=True)
    assert found.use_cpu
    assert found.device == torch.device("cpu")
    assert found.n_gpu == 0
    assert found.world_size == 1
    assert not found.dataloader_pin_memory
    assert not arguments(tmp_path, use_cpu=True, dataloader_pin_memory=True).dataloader_pin_memory


def test_backend_stays_in_the_arguments_once_devices_are_set_up(tmp_path: Path) -> None:
    found = arguments(tmp_path, ddp_backend="ccl")
    assert found.device.type == "cpu"
    assert found.ddp_backend == "ccl"
    assert found.to_dict()["ddp_backend"] == "ccl"


@pytest.mark.parametrize("flag", ["fp16", "fp16_full_eval"])
def test_fp16_on_a_cpu_is_refused_and_bf16_named(flag: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        arguments(tmp_path, use_cpu=True, **{flag: True})
    assert f"--{flag}" in caught.value.cause
    assert f"--{flag.replace('fp16', 'bf16')}" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def schedule(trainer: Trainer, steps: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    return rates(optimizer, trainer.create_scheduler(steps, optimizer), steps)


def rates(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("steps", [1, 7, 100])
@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.1, 1 / 3, 0.5, 1.0])
def test_warmup_ratio_gives_the_learning_rates_it_gave(ratio: float, steps: int, tmp_path: Path) -> None:
    trainer = Trainer(model=tiny_bert(), args=arguments(tmp_path, warmup_ratio=ratio))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    wanted = get_linear_schedule_with_warmup(optimizer, math.ceil(steps * ratio), steps)
    assert schedule(trainer, steps) == rates(optimizer, wanted, steps)


def test_warmup_steps_win_over_the_ratio_and_replace_changes_it(tmp_path: Path) -> None:
    both = arguments(tmp_path, warmup_ratio=0.5, warmup_steps=3)
    assert both.get_warmup_steps(100) == 3
    half = arguments(tmp_path, warmup_ratio=0.5)
    assert half.get_warmup_steps(100) == 50
    assert dataclasses.replace(half, warmup_ratio=0.25).get_warmup_steps(100) == 25
    assert dataclasses.replace(half, warmup_ratio=None).get_warmup_steps(100) == 0
    assert arguments(tmp_path, warmup_steps=0.1).get_warmup_steps(100) == 10


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_warmup_ratio_outside_0_to_1_is_refused(ratio: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="warmup_ratio"):
        arguments(tmp_path, warmup_ratio=ratio)


@pytest.mark.parametrize(("asked", "found"), [(None, 7), (50, 50)])
def test_buckets_are_as_tuned_unless_asked_for(
    asked: int | None, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert arguments(tmp_path, ddp_bucket_cap_mb=asked).ddp_bucket_cap_mb == asked
    monkeypatch.setenv(Env.PLOUGH_BUCKET_MB, "7")
    assert arguments(tmp_path, ddp_bucket_cap_mb=asked).ddp_bucket_cap_mb == found


@pytest.mark.parametrize("text", ["", "0", "-5", "many", "1.5"])
def test_a_bucket_size_that_is_none_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Env.PLOUGH_BUCKET_MB, text)
    with pytest.raises(UsageError, match=r"PLOUGH_BUCKET_MB=.* is not a positive whole number"):
        arguments(tmp_path)


def test_group_by_length_batches_like_lengths(tmp_path: Path) -> None:
    rows = [row for i in range(64) for row in qa_rows(1, length=4 + 3 * (i % 8), seed=i)]
    padding = {}
    for grouped in (True, False):
        trainer = Trainer(
            model=tiny_bert(),
            args=arguments(tmp_path, group_by_length=grouped),
            train_dataset=rows,
            data_collator=lambda batch: [len(row["input_ids"]) for row in batch],
        )
        assert isinstance(trainer._get_train_sampler(), LengthGroupedSampler) == grouped
        batches = list(trainer.get_train_dataloader())
        assert sorted(n for batch in batches for n in batch) == sorted(len(row["input_ids"]) for row in rows)
        padding[grouped] = sum(max(batch) - n for batch in batches for n in batch)
    assert 2 * padding[True] < padding[False]


def test_arguments_survive_replace_json_and_pickle(tmp_path: Path) -> None:
    old = {name: value for name, (_, value) in OLD.items()}
    found = arguments(tmp_path, **old)
    assert found.device.type == "cpu"  # devices set up: what is saved mid-training
    again = dataclasses.replace(found, learning_rate=2e-5)
    assert again.learning_rate == 2e-5
    assert {name: getattr(again, name) for name in OLD} == old
    assert json.loads(found.to_json_string()) | old == json.loads(found.to_json_string())
    assert found.to_sanitized_dict()["warmup_ratio"] == 0.1

    torch.save(found, tmp_path / "training_args.bin")
    for copy in (
        torch.load(tmp_path / "training_args.bin", weights_only=False),
        pickle.loads(pickle.dumps(found)),
    ):
        assert type(copy) is TrainingArguments
        assert copy.to_dict() == found.to_dict()
        assert copy.device == found.device
    assert TrainingArguments(**{k: v for k, v in found.to_dict().items() if k in old}).warmup_ratio == 0.1


def test_from_to_dict_round_trip(tmp_path: Path) -> None:
    found = arguments(tmp_path, warmup_ratio=0.2, group_by_length=True)
    names = {f.name for f in dataclasses.fields(found) if f.init}
    again = TrainingArguments(**{k: v for k, v in found.to_dict().items() if k in names})
    assert again.to_dict() == found.to_dict()
