"""The flags that say what to train, and back."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from plough.errors import ModelError, PloughError, UsageError
from plough.tune.workload import Workload, add_workload_arguments, workload_of


def read(*words: str) -> Workload:
    parser = argparse.ArgumentParser()
    add_workload_arguments(parser)
    return workload_of(parser.parse_args(words))


@pytest.mark.parametrize(
    "workload",
    [
        Workload(model="bert-large-uncased"),
        Workload(model="a/b", seq=1, batch=2, precision="bf16", steps=3, seconds=0.25),
    ],
)
def test_flags_and_back(workload: Workload) -> None:
    assert read(*workload.arguments()) == workload


WRONG: dict[str, tuple[list[str], type[PloughError], str]] = {
    "no tokens": (["--seq", "0"], UsageError, "--seq 0: at least 1"),
    "no samples": (["--batch", "-1"], UsageError, "--batch -1: at least 1"),
    "no steps": (["--steps", "0"], UsageError, "--steps 0: at least 1"),
    "no time": (["--seconds-per-setting", "0"], UsageError, "--seconds-per-setting 0: must be more"),
    "no end": (["--seconds-per-setting", "inf"], UsageError, "--seconds-per-setting inf: must be more"),
    "no folder": (["--model", "/no/where"], ModelError, "--model /no/where: no such model folder"),
    "no name": (["--model", ""], ModelError, "no such model folder"),
    "no model in it": (["--model", "."], ModelError, "has no config.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, error, text = WRONG[case]
    with pytest.raises(error) as caught:
        read("--model", "name", *words)
    assert text in caught.value.cause


def test_titles(tmp_path: Path) -> None:
    assert Workload(model="google-bert/bert-large-uncased").title == "google-bert/bert-large-uncased"
    assert Workload(model="/home/me/minilm/model").title == "minilm/model"
