"""Every real odd file goes through the whole task: read, cut, trained on for a step, answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plough.errors import DataError
from plough.tasks.question_answering.main import main
from tests.shared_data import shared_path

SMALL = [
    "farm-answer-offset-wrong.json",
    "farm-eval-sample.json",
    "farm-noanswer.json",
    "farm-vanilla.json",
    "cmrc2018_trial.json",
    "covidqa-200421.json",
]


def run(file: Path, model: Path, out: Path, *flags: str) -> None:
    main(
        [
            *("--model_name_or_path", str(model), "--output_dir", str(out), "--report_to", "none"),
            *(
                "--disable_tqdm",
                "True",
                "--max_seq_length",
                "128",
                "--doc_stride",
                "32",
                "--do_train",
                "--per_device_eval_batch_size",
                "64",
            ),
            *("--train_file", str(file), "--do_eval", "--validation_file", str(file), "--max_steps", "1"),
            *("--test_file", str(file), "--do_predict", "--version_2_with_negative", *flags),
        ]
    )


@pytest.mark.parametrize("name", SMALL)
def test_part_of_it(name: str, model_folder: Path, tmp_path: Path) -> None:
    few = [f for which in ("train", "eval", "predict") for f in (f"--max_{which}_samples", "4")]
    run(shared_path(f"data/odd/{name}"), model_folder, tmp_path, *few)
    found = json.loads((tmp_path / "all_results.json").read_text())
    assert found["train_samples"] >= 1
    assert 0 <= found["eval_f1"] <= 100
    assert len(json.loads((tmp_path / "eval_predictions.json").read_text())) == found["eval_samples"]
    report = json.loads((tmp_path / "data_report.json").read_text())
    assert all(part["read"] - part["kept"] == part["dropped"] for part in report.values())


def test_nothing_left_to_train_on_is_an_error_with_an_account(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="no usable question is left"):
        run(shared_path("data/odd/farm-answer-wrong.json"), model_folder, tmp_path)
    assert "1 dropped" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cmrc2018_trial.json", "covidqa-200421.json"])
def test_all_of_it(name: str, model_folder: Path, tmp_path: Path) -> None:
    few = [f for which in ("eval", "predict") for f in (f"--max_{which}_samples", "50")]
    run(shared_path(f"data/odd/{name}"), model_folder, tmp_path, *few)
    found = json.loads((tmp_path / "all_results.json").read_text())
    assert found["train_samples"] >= found["train_questions"] >= 1000
    assert found["eval_samples"] == 50
