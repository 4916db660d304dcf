"""A port that the ranks of a host agree on, and the private folder they leave it in."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plough.contract import WorkerIdentity
from plough.errors import LaunchError
from plough.launchers.rendezvous import agree_on_port, free_port, job_key, private_folder

AGREE = """
import sys
from pathlib import Path
from plough.contract import WorkerIdentity
from plough.launchers.rendezvous import agree_on_port
rank, size, folder, key = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
me = WorkerIdentity(rank=rank, world_size=size, local_rank=rank, local_world_size=size, launcher="env")
print(agree_on_port(me, folder, key, timeout=30), flush=True)
sys.stdin.read()
"""


def identity(rank: int, size: int = 2) -> WorkerIdentity:
    return WorkerIdentity(rank=rank, world_size=size, local_rank=rank, local_world_size=size, launcher="env")


@contextmanager
def rank(number: int, size: int, folder: Path, key: str = "job") -> Iterator[subprocess.Popen[str]]:
    """A process that agrees, says its port, and lives until it is let go."""
    command = [sys.executable, "-c", AGREE, str(number), str(size), str(folder), key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_several_processes_agree(tmp_path: Path) -> None:
    # Rank 0 is the last to start, so the others have to wait for it.
    with (
        rank(3, 4, tmp_path) as d,
        rank(2, 4, tmp_path) as c,
        rank(1, 4, tmp_path) as b,
        rank(0, 4, tmp_path) as a,
    ):
        ports = [said(process) for process in (a, b, c, d)]
    assert len(set(ports)) == 1
    assert 1024 <= ports[0] < 65536


def test_two_jobs_do_not_meet(tmp_path: Path) -> None:
    with rank(0, 2, tmp_path, "one") as a, rank(0, 2, tmp_path, "two") as b:
        first, second = said(a), said(b)
        assert agree_on_port(identity(1), tmp_path, "one", timeout=0) == first
        assert agree_on_port(identity(1), tmp_path, "two", timeout=0) == second


def test_the_port_of_a_job_that_is_over_does_not_count(tmp_path: Path) -> None:
    with rank(0, 2, tmp_path) as old:
        said(old)
    assert (tmp_path / "port-job").exists()
    with pytest.raises(LaunchError, match="rank 1: rank 0 of this host left no port") as caught:
        agree_on_port(identity(1), tmp_path, "job", timeout=0.05)
    assert "MASTER_PORT" in str(caught.value.hint)
    port = agree_on_port(identity(0), tmp_path, "job")
    assert agree_on_port(identity(1), tmp_path, "job", timeout=0) == port


@pytest.mark.parametrize("content", ["", "29500", "many 1-2", "29500 x-y", "29500 1 2"])
def test_garbage_is_no_port(tmp_path: Path, content: str) -> None:
    (tmp_path / "port-job").write_text(content)
    with pytest.raises(LaunchError):
        agree_on_port(identity(1), tmp_path, "job", timeout=0)


def test_ports_of_jobs_that_are_over_are_swept(tmp_path: Path) -> None:
    (tmp_path / "port-old").write_text("29500 1-0")
    with rank(0, 2, tmp_path, "live") as live:
        said(live)
        agree_on_port(identity(0), tmp_path, "mine")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["port-live", "port-mine"]


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()


def test_a_key_names_one_process_for_good() -> None:
    mine = job_key(os.getpid())
    assert mine == job_key(os.getpid())
    assert mine.startswith(f"{os.getpid()}-")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert job_key(other.pid).startswith(f"{other.pid}-")
    assert job_key(other.pid) == str(other.pid)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_private_folder(runtime: Path) -> None:
    folder = private_folder()
    assert folder == runtime / f"plough-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder() == folder


def test_without_a_runtime_folder_it_is_in_the_temp_folder(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(runtime))
    for value in (None, str(runtime / "none")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value) if value else monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert private_folder() == runtime / f"plough-{os.getuid()}"


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o770, 0o777])
def test_a_folder_others_can_enter_is_refused(runtime: Path, mode: int) -> None:
    folder = runtime / f"plough-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(LaunchError, match="is not a folder that only you can enter") as caught:
        private_folder()
    assert "TMPDIR" in str(caught.value.hint)


def test_a_folder_of_somebody_else_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(LaunchError, match="plough-54321 is not a folder that only you can enter"):
        private_folder()


def test_a_link_or_a_file_in_its_place_is_refused(runtime: Path) -> None:
    place = runtime / f"plough-{os.getuid()}"
    elsewhere = runtime / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    with pytest.raises(LaunchError, match="is not a folder that only you can enter"):
        private_folder()
    place.unlink()
    place.write_text("")
    with pytest.raises(LaunchError, match="File exists"):
        private_folder()
