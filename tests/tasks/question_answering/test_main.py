"""`plough train qa` as a whole, with a model so small that a run takes seconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plough.errors import UsageError
from plough.tasks.question_answering.main import main
from tests.train.helpers import plough

Run = Callable[..., Path]

LEFT_BY_A_RUN = """
README.md all_results.json config.json data_report.json eval_nbest_predictions.json eval_predictions.json
eval_results.json model.safetensors plough.json tokenizer.json tokenizer_config.json train_results.json
trainer_state.json training_args.bin training_args.json
"""


@pytest.fixture
def run(model_folder: Path, data_folder: Path, tmp_path: Path) -> Run:
    """Runs the task in this process; files are named as in `data_folder`. Returns the output folder."""

    def start(*flags: str, out: Path = tmp_path / "out", model: Path = model_folder) -> Path:
        argv = [str(data_folder / flag) if flag.endswith(".json") else flag for flag in flags]
        main([*common(model, out), *argv])
        return out

    return start


def common(model: Path, out: Path) -> list[str]:
    return str.split(
        f"--model_name_or_path {model} --output_dir {out} --report_to none --disable_tqdm True --dropout 0 "
        "--max_seq_length 64 --doc_stride 16 --per_device_train_batch_size 4 --per_device_eval_batch_size 4 "
        "--learning_rate 1e-3 --logging_steps 1"
    )


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def results(folder: Path) -> Any:
    return read(folder / "all_results.json")


def test_train_evaluate_predict(run: Run, data_folder: Path) -> None:
    out = run(
        *("--do_train", "--train_file", "train.json", "--do_eval", "--validation_file", "dev.json"),
        *("--do_predict", "--test_file", "test.json", "--max_steps", "4", "--group_by_length"),
        *("--max_train_samples", "20", "--max_eval_samples", "6"),
    )
    assert set(LEFT_BY_A_RUN.split()) <= set(os.listdir(out))
    found = results(out)
    assert found["world_size"] == 1
    assert (found["train_questions"], found["eval_samples"], found["predict_samples"]) == (20, 6, 5)
    assert found["train_samples"] >= 20
    assert 0 <= found["eval_exact_match"] <= found["eval_f1"] <= 100
    assert not any("predict_f1" in name or "predict_exact" in name for name in found)
    assert list(read(out / "eval_predictions.json")) == [f"q{n}" for n in range(6)]
    predicted = read(out / "predict_predictions.json")
    assert list(predicted) == [f"t{n}" for n in range(5)]
    contexts = {q["id"]: q["context"] for q in read(data_folder / "test.json")["data"]}
    assert all(predicted[name] and predicted[name] in contexts[name] for name in contexts)
    report = read(out / "data_report.json")
    assert {name: part["kept"] for name, part in report.items()} == {"train": 20, "validation": 6, "test": 5}
    card = (out / "README.md").read_text()
    assert "fine-tuned on train.json" in card
    assert "| ranks | 1 |" in card
    assert f"| F1 | {found['eval_f1']:.2f} |" in card
    assert read(out / "training_args.json")["group_by_length"] is True

    # As where Plough is not installed: torch does not look for its backend.
    without = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(out)],
        capture_output=True,
        text=True,
        cwd=out,
        timeout=120,
        env=without,
    )
    assert done.returncode == 0, done.stderr


PLAIN = """
import sys
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
model, info = AutoModelForQuestionAnswering.from_pretrained(sys.argv[1], output_loading_info=True)
assert not any(info.values()), info
output = model(**AutoTokenizer.from_pretrained(sys.argv[1])("who?", "a king", return_tensors="pt"))
assert output.start_logits.shape[0] == 1
assert "plough" not in sys.modules
"""


def test_questions_without_an_answer(run: Run) -> None:
    out = run(
        *("--do_train", "--train_file", "impossible.json", "--do_eval", "--validation_file"),
        *("impossible.json", "--version_2_with_negative", "--max_steps", "2", "--n_best_size", "3"),
    )
    found = results(out)
    assert (found["eval_HasAns_total"], found["eval_NoAns_total"], found["eval_total"]) == (8, 4, 12)
    assert found["eval_best_f1"] >= found["eval_f1"]
    odds = read(out / "eval_null_odds.json")
    predictions = read(out / "eval_predictions.json")
    assert list(odds) == list(predictions) == [f"q{n}" for n in range(12)]
    assert all((odds[name] > 0) == (predictions[name] == "") for name in odds)
    nbest = read(out / "eval_nbest_predictions.json")
    assert all("" in {c["text"] for c in listed} and len(listed) <= 4 for listed in nbest.values())

    silent = run(
        *("--do_eval", "--validation_file", "impossible.json", "--version_2_with_negative"),
        *("--null_score_diff_threshold", "-1000000"),
        out=out.with_name("silent"),
        model=out,
    )
    assert set(read(silent / "eval_predictions.json").values()) == {""}
    assert results(silent)["eval_NoAns_f1"] == 100
    assert results(silent)["eval_exact_match"] == pytest.approx(100 / 3)


def test_best_model_by_f1(run: Run) -> None:
    out = run(
        *("--do_train", "--train_file", "train.json", "--do_eval", "--validation_file", "dev.json"),
        *("--eval_strategy", "steps", "--eval_steps", "6", "--save_strategy", "steps", "--save_steps", "6"),
        *("--load_best_model_at_end", "--metric_for_best_model", "f1", "--num_train_epochs", "5"),
    )
    state = read(out / "trainer_state.json")
    history = {e["step"]: e["eval_f1"] for e in state["log_history"] if "eval_f1" in e}
    assert list(history)[:5] == [6, 12, 18, 24, 30]
    best = min(step for step in list(history)[:5] if history[step] == max(history.values()))
    assert state["best_metric"] == history[best]
    assert state["best_global_step"] == best
    best_weights = load_file(out / f"checkpoint-{best}" / "model.safetensors")
    saved = load_file(out / "model.safetensors")
    assert all(torch.equal(saved[name], best_weights[name]) for name in saved)
    assert results(out)["eval_f1"] == state["best_metric"]


def test_interrupted_run_goes_on_from_the_newest_complete_checkpoint(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = str.split(
        "--do_train --train_file train.json --max_steps 8 --save_strategy steps --save_steps 2 --dropout 0.1"
    )
    whole = run(*flags)
    cut = tmp_path / "cut"
    cut.mkdir()
    for step in (2, 4, 6):
        shutil.copytree(whole / f"checkpoint-{step}", cut / f"checkpoint-{step}")
    (cut / "checkpoint-6" / "trainer_state.json").unlink()
    capsys.readouterr()
    run(*flags, out=cut)
    said = capsys.readouterr().err
    assert f"{cut / 'checkpoint-6'}: left out, it was cut off while it was written" in said
    assert f"going on from {cut / 'checkpoint-4'}, where an earlier run stopped" in said
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (cut, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    steps = [e["step"] for e in read(cut / "trainer_state.json")["log_history"] if "loss" in e]
    assert steps == list(range(1, 9))


def test_finished_folder_is_not_trained_over_by_mistake(run: Run) -> None:
    flags = ("--do_train", "--train_file", "train.json", "--max_steps", "1", "--seed", "1")
    out = run(*flags)
    first = (out / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="holds a finished run"):
        run(*flags, "--learning_rate", "1e-2")
    assert (out / "model.safetensors").read_bytes() == first
    run(*flags, "--learning_rate", "1e-2", "--overwrite_output_dir")
    assert (out / "model.safetensors").read_bytes() != first
    run("--do_eval", "--validation_file", "dev.json", model=out)  # measuring it again is no training


def test_padding_to_full_length_answers_the_same(run: Run, tmp_path: Path) -> None:
    flags = ("--do_eval", "--validation_file", "dev.json")
    found = [
        read(run(*flags, *more, out=tmp_path / str(len(more))) / "eval_predictions.json")
        for more in ((), ("--pad_to_max_length",), ("--group_by_length", "--preprocessing_num_workers", "2"))
    ]
    assert found[0] == found[1] == found[2]


def test_two_ranks_answer_as_one(run: Run, model_folder: Path, data_folder: Path, tmp_path: Path) -> None:
    """The command as users type it: one job of two ranks, whose predictions one rank repeats."""
    out = tmp_path / "two"
    flags = ["--do_train", "--train_file", str(data_folder / "train.json"), "--max_steps", "3"]
    flags += ["--do_eval", "--validation_file", str(data_folder / "dev.json"), "--version_2_with_negative"]
    flags += ["--do_predict", "--test_file", str(data_folder / "test.json"), "--no_cuda", "--ddp_backend"]
    flags += ["ccl", "--use_ipex"]
    done = plough(
        "train", "--ranks", "2", "--oversubscribe", "qa", *common(model_folder, out), *flags, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = results(out)
    assert found["world_size"] == 2
    assert found["eval_samples"] == 12
    assert "3 steps" in done.stderr
    assert done.stderr.count("24 questions read") == 1  # one rank speaks
    record = read(out / "plough.json")
    assert record["contract"]["identity"]["world_size"] == len(record["plan"]["ranks"]) == 2
    assert "| ranks | 2 |" in (out / "README.md").read_text()

    alone = run(
        *("--do_eval", "--validation_file", "dev.json", "--version_2_with_negative"),
        *("--do_predict", "--test_file", "test.json"),
        out=tmp_path / "one",
        model=out,
    )
    for name in ("eval_predictions.json", "predict_predictions.json"):
        assert read(alone / name) == read(out / name)
    assert results(alone)["eval_f1"] == pytest.approx(found["eval_f1"], abs=1e-9)
    odds = [read(folder / "eval_null_odds.json") for folder in (alone, out)]
    assert odds[0] == pytest.approx(odds[1], abs=1e-4)


def test_an_error_of_all_ranks_is_said_once(model_folder: Path, tmp_path: Path) -> None:
    argv = [*common(model_folder, tmp_path / "out"), "--do_trian"]
    done = plough("train", "--ranks", "2", "--oversubscribe", "qa", *argv, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("--do_trian: no such flag") == 1
    assert "did you mean --do_train?" in done.stderr
    assert "Traceback" not in done.stderr
