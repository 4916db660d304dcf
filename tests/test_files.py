"""A file is there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from plough.errors import PloughError
from plough.files import staged_folder, write_text_atomic


def test_writes_utf8_with_line_ends_untouched(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text_atomic(path, "né\r\n😀\n")
    assert path.read_bytes() == "né\r\n😀\n".encode()
    assert os.listdir(tmp_path) == ["a.json"]


def test_replaces_and_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(0o640)
    write_text_atomic(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_follows_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EDQUOT, "quota"), (errno.EIO, None)],
)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, hint: str | None
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(PloughError) as caught:
        write_text_atomic(path, "new")
    assert str(path) in caught.value.cause
    assert os.strerror(number) in caught.value.cause
    assert (hint in caught.value.hint) if hint and caught.value.hint else caught.value.hint is None
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_atomic(tmp_path / "a", "x")
    assert os.listdir(tmp_path) == []


def test_the_folder_is_missing_or_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(PloughError, match="No such file") as caught:
        write_text_atomic(tmp_path / "none" / "a", "x")
    assert "create it" in str(caught.value.hint)
    with pytest.raises(PloughError, match="directory"):
        write_text_atomic(tmp_path, "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(PloughError, match=r"[Nn]ot a directory"):
        write_text_atomic(tmp_path / "file" / "a", "x")


def test_half_a_character_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PloughError, match="lone surrogate"):
        write_text_atomic(tmp_path / "a", "x\ud800")
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_takes_no_files() -> None:
    with pytest.raises(PloughError, match="cannot write /proc/plough-test"):
        write_text_atomic("/proc/plough-test", "x")


class TestStagedFolder:
    def test_files_and_folders_arrive_together(self, tmp_path: Path) -> None:
        (tmp_path / "model.bin").write_text("old")
        with staged_folder(tmp_path) as staging:
            (staging / "model.bin").write_text("new")
            (staging / "sub").mkdir()
            (staging / "sub" / "part").write_text("1")
            assert (tmp_path / "model.bin").read_text() == "old"
        assert (tmp_path / "model.bin").read_text() == "new"
        assert (tmp_path / "sub" / "part").read_text() == "1"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["model.bin", "sub"]

    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "model.bin").write_text("old")

        def fill() -> None:
            with staged_folder(tmp_path) as staging:
                (staging / "model.bin").write_text("ne")
                raise OSError("full")

        with pytest.raises(OSError, match="full"):
            fill()
        assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"model.bin": "old"}

    def test_the_folder_is_made(self, tmp_path: Path) -> None:
        with staged_folder(tmp_path / "a" / "b") as staging:
            (staging / "x").write_text("")
        assert (tmp_path / "a" / "b" / "x").exists()
