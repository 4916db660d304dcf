"""Where compiled code is kept: whose folder, whole or not at all, and what cleaning takes."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from plough.comm import cache as module
from plough.comm.cache import Cache, find_cache
from plough.errors import BuildError

KEY = "0123abcd-89ef"
HOST = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in socket.gethostname())


def silent(text: str) -> None:
    raise AssertionError(text)


def put(cache: Cache, key: str = KEY, text: str = "code") -> Path:
    with cache.locked("x", silent), cache.workspace() as folder:
        (folder / "x.so").write_text(text)
        cache.keep(key, folder, folder / "x.so", {"build.log": "words"})
    return cache.builds / key / "x.so"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(root=tmp_path / "plough")


@pytest.mark.parametrize(
    ("environment", "root", "mode"),
    [
        ({"PLOUGH_CACHE_DIR": "/opt/p", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/opt/p", 0o755),
        ({"PLOUGH_CACHE_DIR": "", "XDG_CACHE_HOME": "/x"}, "/x/plough", 0o700),
        ({"XDG_CACHE_HOME": ""}, "/h/.cache/plough", 0o700),
        ({"XDG_CACHE_HOME": "relative"}, "/h/.cache/plough", 0o700),
        ({}, "/h/.cache/plough", 0o700),
    ],
)
def test_where(environment: dict[str, str], root: str, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    found = find_cache(environment)
    assert (found.root, found.mode) == (Path(root), mode)


def test_a_relative_folder_is_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_cache({"PLOUGH_CACHE_DIR": "c"}).root == tmp_path / "c"


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BuildError, match="no home folder") as caught:
        find_cache({})
    assert "PLOUGH_CACHE_DIR" in str(caught.value.hint)


def test_kept_whole_and_found(cache: Cache) -> None:
    assert cache.look(KEY, "x.so") is None
    path = put(cache)
    assert cache.look(KEY, "x.so") == path
    assert cache.look_for_any("0123abcd", "x.so") == path
    assert cache.look_for_any("0123", "x.so") is None
    assert (path.parent / "build.log").read_text() == "words"
    assert sorted(os.listdir(cache.builds)) == [KEY, "lock"]


def test_the_newest_of_several(cache: Cache) -> None:
    old, new = put(cache, "aa-11"), put(cache, "aa-00")
    os.utime(old, (1, 1))
    assert cache.look_for_any("aa", "x.so") == new


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_nobody_else_can_write_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    cache = Cache(root=tmp_path / "plough", mode=mode)
    before = os.umask(umask)
    try:
        path = put(cache)
    finally:
        os.umask(before)
    for place in (cache.root, cache.builds, path.parent, path, path.parent / "build.log"):
        found = stat.S_IMODE(place.stat().st_mode)
        assert not found & 0o022
        assert not found & ~mode
    assert cache.look(KEY, "x.so") == path


def test_replaced_in_one_piece(cache: Cache) -> None:
    put(cache, text="old")
    assert put(cache, text="new").read_text() == "new"
    assert sorted(os.listdir(cache.builds)) == [KEY, "lock"]


def test_a_folder_without_its_file_is_no_build(cache: Cache) -> None:
    put(cache).unlink()
    assert cache.look(KEY, "x.so") is None
    assert put(cache).read_text() == "code"


@pytest.mark.parametrize("what", ["root", "builds", "key"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_others_can_write(cache: Cache, what: str, mode: int) -> None:
    path = put(cache)
    folder = {"root": cache.root, "builds": cache.builds, "key": path.parent}[what]
    folder.chmod(mode)
    with pytest.raises(BuildError) as caught:
        cache.look(KEY, "x.so")
    assert caught.value.cause == f"{folder} can be written by other users: code from it is not loaded"
    assert f"chmod go-w {folder}" in str(caught.value.hint)
    if what != "key":
        with pytest.raises(BuildError, match="can be written"), cache.locked("x", silent):
            pass
    folder.chmod(0o700)
    assert cache.look(KEY, "x.so") == path


def test_a_folder_of_another_user(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(cache)
    if os.geteuid() == 0:
        os.chown(path.parent, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BuildError, match=r"belongs to another user \(uid \d+\)"):
        cache.look(KEY, "x.so")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is root's")
def test_roots_folder_is_trusted(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.look(KEY, "x.so") == path


@pytest.mark.parametrize("root", ["/dev/null/plough", "/proc/plough"])
def test_a_folder_that_cannot_be(root: str) -> None:
    with pytest.raises(BuildError) as caught, Cache(root=Path(root)).locked("x", silent):
        pass
    assert caught.value.cause.startswith(f"{root}, where compiled code is kept, cannot be used: ")
    assert "PLOUGH_CACHE_DIR" in str(caught.value.hint)


def test_a_full_disk_leaves_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BuildError, match="No space left on device"):
        put(cache)
    assert os.listdir(cache.builds) == ["lock"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(cache: Cache, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    assert put(cache).read_text() == "code"


def test_the_lock_of_a_dead_process_is_free(cache: Cache) -> None:
    code = (
        "import os; from pathlib import Path; from plough.comm.cache import Cache\n"
        f"with Cache(root=Path({str(cache.root)!r})).locked('x', print): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -9
    with cache.locked("x", silent) as waited:
        assert not waited


def test_who_is_waited_for_is_said(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    code = (
        "import sys; from pathlib import Path; from plough.comm.cache import Cache\n"
        f"with Cache(root=Path({str(cache.root)!r})).locked('x', print): print(flush=True); sys.stdin.read()"
    )
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()

        def say(text: str) -> None:
            said.append(text)
            assert holder.stdin is not None
            holder.stdin.close()

        with cache.locked("the thing", say) as waited:
            assert waited
    host = socket.gethostname()
    assert said == [f"waiting for process {holder.pid} on {host}, which is building the thing ..."]


class TestClean:
    def test_keeps_the_current_and_what_is_not_ours(self, cache: Cache) -> None:
        put(cache, "aa-00", "1234567890")
        put(cache, "aa-11")
        cache.write_log("bb-00", "failed")
        (cache.builds / "notes").write_text("mine")
        with cache.locked("x", silent):
            found = cache.clean({"aa-11"}, really=False)
            assert (cache.builds / "aa-00").exists()
            assert cache.clean({"aa-11"}) == found
            assert cache.clean({"aa-11"}) == []
        assert [(one.name, one.size) for one in found] == [("aa-00", 15), ("bb-00.log", 6)]
        assert sorted(os.listdir(cache.builds)) == ["aa-11", "lock", "notes"]

    def test_nothing_there(self, cache: Cache) -> None:
        assert cache.clean(set()) == []

    def test_leftovers_of_the_dead(self, cache: Cache) -> None:
        put(cache)
        names = {f".build-{HOST}-a": 0, ".build-elsewhere-b": 0, ".build-elsewhere-c": 2 * 24 * 3600}
        for name, age in names.items():
            (cache.builds / name).mkdir()
            then = (cache.builds / name).stat().st_mtime - age
            os.utime(cache.builds / name, (then, then))
        put(cache)  # another host may be building at this moment, and its locks may not be ours
        assert sorted(os.listdir(cache.builds)) == [".build-elsewhere-b", KEY, "lock"]


def test_a_log_and_its_first_line(cache: Cache) -> None:
    put(cache)
    assert cache.failure(KEY) is None
    path = cache.write_log(KEY, "the cause\nand much more")
    found = cache.failure(KEY)
    assert found is not None
    assert found[1] == "the cause"
    put(cache)
    assert not path.exists()
