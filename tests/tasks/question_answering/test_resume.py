"""Which checkpoint a run goes on from; what is torn is left out; what is finished is not trained over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plough.errors import UsageError
from plough.tasks.question_answering.resume import (
    clear_earlier_run,
    complete_checkpoints,
    make_writable,
    starting_point,
)


def checkpoint(
    folder: Path, step: int, *, state: str | None = "{}", weights: str | None = "model.safetensors"
) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    if weights is not None:
        (path / weights).write_bytes(b"")
    return path


def start(folder: Path, resume: str | None = None, overwrite: bool = False) -> Path | None:
    return starting_point(folder, resume=resume, overwrite=overwrite)[0]


def finish(folder: Path) -> None:
    (folder / "train_results.json").write_text(json.dumps({}))


def test_an_empty_or_missing_folder_is_a_beginning(tmp_path: Path) -> None:
    assert starting_point(tmp_path, resume=None, overwrite=False) == (None, [])
    assert start(tmp_path / "gone") is None


def test_the_newest_complete_checkpoint_by_number(tmp_path: Path) -> None:
    for step in (1000, 200, 90):
        checkpoint(tmp_path, step)
    found, said = starting_point(tmp_path, resume=None, overwrite=False)
    assert found == tmp_path / "checkpoint-1000"
    assert said == [f"going on from {found}, where an earlier run stopped"]
    assert start(tmp_path, resume="True") == start(tmp_path, resume="true") == found


def test_torn_checkpoints_are_left_out_and_named(tmp_path: Path) -> None:
    whole = [checkpoint(tmp_path, 1), checkpoint(tmp_path, 2, weights="pytorch_model.bin")]
    whole.append(checkpoint(tmp_path, 3, weights="adapter_model.safetensors"))
    torn = [
        checkpoint(tmp_path, 4, state=None),
        checkpoint(tmp_path, 5, state='{"global_step": '),
        checkpoint(tmp_path, 6, weights=None),
    ]
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert complete_checkpoints(tmp_path) == (whole, [*torn, tmp_path / "checkpoint-7"])
    found, said = starting_point(tmp_path, resume=None, overwrite=False)
    assert found == whole[-1]
    assert [f"{path}: left out, it was cut off while it was written" for path in torn] == said[:3]
    only_torn = tmp_path / "other"
    checkpoint(only_torn, 4, state=None)
    found, said = starting_point(only_torn, resume=None, overwrite=False)
    assert found is None
    assert "left out" in said[0]


def test_a_finished_run_is_refused_unless_overwritten(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    finish(tmp_path)
    for resume in (None, "True", "False"):
        with pytest.raises(UsageError, match="holds a finished run") as caught:
            start(tmp_path, resume=resume)
        assert "--overwrite_output_dir" in (caught.value.hint or "")
    assert start(tmp_path, overwrite=True) is None


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    old, new = checkpoint(tmp_path, 5), checkpoint(tmp_path, 9)
    assert start(tmp_path, resume=str(old)) == old
    assert start(tmp_path, resume="False") is None
    assert start(tmp_path, overwrite=True) is None
    assert start(tmp_path, resume="True", overwrite=True) == new
    torn = checkpoint(tmp_path, 11, state=None)
    for path in (torn, tmp_path / "gone"):
        with pytest.raises(UsageError, match="not a complete checkpoint"):
            start(tmp_path, resume=str(path))
    with pytest.raises(UsageError, match="holds no complete checkpoint"):
        start(tmp_path / "empty", resume="True")


def test_an_overwritten_run_leaves_nothing_to_go_on_from(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 20, state=None)
    finish(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"1")
    (tmp_path / "notes.txt").write_text("mine")
    said = clear_earlier_run(tmp_path)
    assert said == [f"{tmp_path}: the earlier run's 2 checkpoints and results are overwritten"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "notes.txt"]
    assert start(tmp_path) is None
    assert clear_earlier_run(tmp_path) == []


def test_an_output_folder_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    make_writable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        make_writable(tmp_path / "file" / "out")
