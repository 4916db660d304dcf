"""Every mistake on the command line is a UsageError that names it and, where it can, the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plough.errors import DataError, ModelError, PloughError, UsageError
from plough.tasks.question_answering.arguments import parse
from plough.tasks.question_answering.main import entry, main

GUIDE = str.split("""
--model_name_or_path m --dataset_name squad --do_train --do_eval --per_device_train_batch_size 12
--learning_rate 3e-5 --num_train_epochs 2 --max_seq_length 384 --doc_stride 128 --output_dir out --no_cuda
--use_ipex --ddp_backend ccl --bf16 --overwrite_output_dir --warmup_ratio 0.1 --group_by_length
--version_2_with_negative --n_best_size 10 --max_answer_length 25 --null_score_diff_threshold 0.5
--max_train_samples 100 --max_eval_samples 50 --max_predict_samples 5 --preprocessing_num_workers 2
--overwrite_cache --pad_to_max_length --save_strategy no
""")


def test_the_commands_of_the_old_guides_parse() -> None:
    model, data, training = parse(GUIDE)
    assert model.model_name_or_path == "m"
    assert (data.dataset_name, data.max_seq_length, data.doc_stride) == ("squad", 384, 128)
    assert (data.n_best_size, data.max_answer_length, data.null_score_diff_threshold) == (10, 25, 0.5)
    assert data.version_2_with_negative
    assert data.pad_to_max_length
    assert training.no_cuda
    assert training.bf16
    assert training.ddp_backend == "ccl"
    assert training.get_warmup_steps(100) == 10
    assert training.train_sampling_strategy == "group_by_length"


def test_one_json_file_is_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    wanted = {"model_name_or_path": "m", "output_dir": "o", "do_eval": True, "doc_stride": 7, "no_cuda": True}
    file.write_text(json.dumps(wanted))
    model, data, training = parse([str(file)])
    assert (model.model_name_or_path, data.doc_stride, training.no_cuda) == ("m", 7, True)


BASE = ["--model_name_or_path", "m", "--output_dir", "o"]
MISTAKES = {
    "misspelt flag": ([*BASE, "--learning_rat", "1"], "--learning_rat: no such flag", "--learning_rate?"),
    "misspelt with =": ([*BASE, "--doc-strid=3"], "--doc-strid: no such flag", "--doc"),
    "nothing like it": ([*BASE, "--zzzzzz"], "--zzzzzz: no such flag", "--help"),
    "stray word": ([*BASE, "squad"], "squad: neither a flag nor the value of one", "--"),
    "missing value": ([*BASE, "--doc_stride"], "argument --doc_stride/--doc-stride", "--help"),
    "not a number": ([*BASE, "--doc_stride", "x"], "invalid int value: 'x'", "--help"),
    "no model": (["--output_dir", "o"], "--model_name_or_path", "--help"),
    "unknown backend": ([*BASE, "--ddp_backend", "smoke"], "invalid choice: 'smoke'", "--help"),
    "fp16": ([*BASE, "--fp16", "--use_cpu"], "--fp16: CPUs have no fp16", "--bf16"),
    "warm-up": ([*BASE, "--warmup_ratio", "2"], "--warmup_ratio 2", None),
    "strategies": (
        [*BASE, "--load_best_model_at_end", "--eval_strategy", "epoch", "--save_strategy", "steps"],
        "load_best_model_at_end requires",
        "--help",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named(what: str) -> None:
    argv, cause, hint = MISTAKES[what]
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert cause in caught.value.cause
    assert caught.value.exit_code == 2
    if hint is not None:
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("{", "run.json"),
        ('{"output_dir": "o", "model_name_or_path": "m", "doc_strid": 1}', "doc_strid"),
        ('{"output_dir": "o"}', "model_name_or_path"),
        ("[1]", "run.json"),
        (None, "run.json"),
    ],
)
def test_a_bad_json_file_is_named(content: str | None, cause: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as caught:
        parse([str(file)])
    assert cause in caught.value.cause


def test_help_shows_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.index("--train_file") < shown.index("--learning_rate")
    assert "plough train qa" in shown


ON_DEV = ["--do_eval", "--validation_file", "DEV"]
TRAIN = ["--do_train", "--train_file"]
REFUSED = {
    "nothing to do": ([], UsageError, "nothing to do"),
    "no data": (["--do_train"], UsageError, "--do_train needs data"),
    "no test data": (["--do_predict"], UsageError, "--do_predict needs data"),
    "no file": (["--do_eval", "--validation_file", "gone.json"], UsageError, "gone.json: no such file"),
    "length": ([*ON_DEV, "--max_seq_length", "0"], UsageError, "--max_seq_length 0"),
    "stride": ([*ON_DEV, "--doc_stride", "-1"], UsageError, "--doc_stride -1"),
    "samples": ([*ON_DEV, "--max_eval_samples", "0"], UsageError, "--max_eval_samples 0"),
    "dropout": ([*ON_DEV, "--dropout", "1.5"], UsageError, "--dropout 1.5"),
    "no room": (
        [*ON_DEV, "--max_seq_length", "40", "--doc_stride", "39"],
        UsageError,
        "--max_seq_length 40 with --doc_stride 39",
    ),
    "torn data": (["--do_eval", "--validation_file", "TORN"], DataError, "torn.json"),
    "empty data": ([*TRAIN, "EMPTY"], DataError, "no usable question is left"),
    "strict": (["--do_eval", "--validation_file", "EMPTY", "--strict_data"], DataError, "empty.json"),
    "no checkpoint": ([*TRAIN, "DEV", "--resume_from_checkpoint", "gone"], UsageError, "gone: not a"),
    "none to resume": ([*TRAIN, "DEV", "--resume_from_checkpoint", "True"], UsageError, "no complete"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused(
    what: str, model_folder: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, kind, cause = REFUSED[what]
    (tmp_path / "torn.json").write_text('{"data": [')
    empty = {"id": "1", "question": " ", "context": "a king", "answers": []}
    (tmp_path / "empty.json").write_text(json.dumps({"data": [empty]}))
    files = {
        "DEV": data_folder / "dev.json",
        "TORN": tmp_path / "torn.json",
        "EMPTY": tmp_path / "empty.json",
    }
    argv = [str(files.get(flag, flag)) for flag in flags]
    argv += ["--model_name_or_path", str(model_folder), "--output_dir", str(tmp_path / "out")]
    argv += ["--report_to", "none"]
    with pytest.raises(kind) as caught:
        main(argv)
    assert cause in caught.value.cause
    # The thin script of the examples says the same on stderr.
    capsys.readouterr()
    assert entry(argv) == 2
    assert caught.value.render() in capsys.readouterr().err
    assert not (tmp_path / "out" / "model.safetensors").exists()


MODELS = {
    "gone": ("./gone", "./gone: no such model folder"),
    "empty": ("EMPTY", "no config.json"),
    "torn weights": ("TORN", "the model cannot be loaded"),
    "another kind": ("T5", "no question answering head"),
    "a hub name offline": ("no-such-org/no-such-model", "neither a folder here nor a model"),
}


@pytest.mark.parametrize("what", MODELS)
def test_models_that_cannot_be_loaded(
    what: str, model_folder: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, cause = MODELS[what]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / name
    if name.isupper():
        folder.mkdir()
        name = str(folder)
    if what in ("torn weights", "another kind"):
        for file in model_folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    if what == "torn weights":
        (folder / "model.safetensors").write_bytes(b"\x08")
    if what == "another kind":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "vit"}))
    argv = ["--model_name_or_path", name, "--output_dir", str(tmp_path / "out"), "--report_to", "none"]
    with pytest.raises(PloughError) as caught:
        main([*argv, "--do_eval", "--validation_file", str(data_folder / "dev.json")])
    assert isinstance(caught.value, ModelError)
    assert cause in caught.value.cause
    assert name in caught.value.cause
