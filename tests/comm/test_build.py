"""The driver: once for all who come, never half, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from plough.comm import build
from plough.comm.build import (
    Product,
    build_shared,
    commands,
    ensure,
    existing,
    extension,
    find_compiler,
    oneccl_product,
    shared,
)
from plough.comm.oneccl import NotUsable, OneCcl, compile_command, find_oneccl
from plough.contract import Env
from plough.errors import BuildError, LaunchError

# Answers for its version, counts what it is asked to build, can be made to wait, and does it.
COMPILER = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "g++ (Test) 12.3.0"; exit; fi
echo "$$" >> {here}/started
while [ -e {here}/wait ]; do sleep 0.05; done
exec g++ "$@"
"""

needs_a_compiler = pytest.mark.skipif(find_compiler(os.environ) is None, reason="no C++ compiler")


class Ended(NamedTuple):
    pid: int
    code: int
    out: str
    err: str


class Workshop:
    """A compiler, a source and a cache of our own; `processes` that build at the same time."""

    def __init__(self, here: Path) -> None:
        self.here, self.cache = here, here / "cache"
        self.errors: dict[subprocess.Popen[str], Path] = {}
        self.compiler, self.source = here / "g++", here / "tiny.cpp"
        self.compiler.write_text(COMPILER.format(here=here))
        self.compiler.chmod(0o755)
        self.source.write_text('extern "C" int answer() {\n  return 42;\n}\n')

    @property
    def argv(self) -> list[str]:
        return [str(self.compiler), "-shared", "-fPIC", str(self.source)]

    @property
    def started(self) -> int:
        file = self.here / "started"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def built(self) -> list[str]:
        """What is in the cache, the lock and logs aside."""
        return [name for name in os.listdir(self.cache / "ccl") if name != "lock" and ".log" not in name]

    def hold(self) -> None:
        (self.here / "wait").touch()

    def go(self) -> None:
        (self.here / "wait").unlink(missing_ok=True)

    def until_started(self, process: subprocess.Popen[str]) -> None:
        while not self.started:
            assert process.poll() is None
            time.sleep(0.02)

    def together(self, count: int) -> list[Ended]:
        """So many processes that come while the first of them is building."""
        self.hold()
        processes = [self.process() for _ in range(count)]
        for process in processes:
            while not self.said(process):  # that it builds, or waits
                assert process.poll() is None
                time.sleep(0.02)
        self.go()
        ended = []
        for process in processes:
            out, _ = process.communicate(timeout=60)
            ended.append(Ended(process.pid, process.returncode, out, self.said(process)))
        return ended

    def said(self, process: subprocess.Popen[str]) -> str:
        return self.errors[process].read_text()

    def process(self) -> subprocess.Popen[str]:
        code = (
            "import sys\n"
            "from plough.comm import build, cache\n"
            "from plough.errors import PloughError\n"
            "cache.PATIENCE_S = 0.3\n"
            f"try: print(build.build_shared('tiny', {self.argv!r}))\n"
            "except PloughError as error: print(error.render()); sys.exit(error.exit_code)\n"
        )
        path = self.here / f"errors-{len(self.errors)}"
        with path.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.errors[process] = path
        return process


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setenv(Env.PLOUGH_CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(Env.CXX, raising=False)
    shop = Workshop(tmp_path)
    yield shop
    shop.go()


def refused(shop: Workshop, error: BuildError) -> str:
    """The whole text, without what differs between machines."""
    return re.sub(r"\b[0-9a-f]{16}-[0-9a-f]{8}\b", "KEY", error.render().replace(str(shop.here), "HERE"))


@needs_a_compiler
class TestShared:
    def test_built_once_and_kept(self, shop: Workshop) -> None:
        said: list[str] = []
        path = build_shared("tiny", shop.argv, progress=said.append)
        assert [line.split()[0] for line in said] == ["building", "..."]
        assert said[0] == "building tiny (once; a few seconds) ..."
        assert build_shared("tiny", shop.argv, progress=said.append) == path
        assert (shop.started, len(said)) == (1, 2)
        assert path.parent.parent == shop.cache / "ccl"
        assert sorted(os.listdir(path.parent)) == ["build.json", "build.log", "tiny.so"]
        done = subprocess.run(
            [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "42\n"

    def test_details(self, shop: Workshop) -> None:
        product = shared("tiny", shop.argv)
        first, second = ensure(product), ensure(product)
        assert (first.fresh, second.fresh) == (True, False)
        assert first.details == second.details
        assert first.details is not None
        assert (first.details.title, first.details.compiler) == ("tiny", "g++ (Test) 12.3.0")
        log = (first.path.parent / "build.log").read_text()
        assert log.startswith(f"$ {shop.compiler} -shared -fPIC {shop.source} -o ")
        (first.path.parent / "build.json").write_text("{")
        assert ensure(product).details is None

    def test_forced(self, shop: Workshop) -> None:
        path = build_shared("tiny", shop.argv)
        assert build_shared("tiny", shop.argv, force=True) == path
        assert shop.started == 2
        assert shop.built() == [path.parent.name]

    def test_another_key_for_whatever_matters(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = {shared("tiny", shop.argv).prefix}
        keys.add(shared("other", shop.argv).prefix)
        keys.add(shared("tiny", [*shop.argv, "-O2"]).prefix)
        keys.add(shared("tiny", shop.argv, [shop.source.read_bytes()]).prefix)
        keys.add(shared("tiny", shop.argv, ["2.0"]).prefix)
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        keys.add(shared("tiny", shop.argv).prefix)
        assert len(keys) == 6

    def test_another_compiler_builds_its_own(self, shop: Workshop) -> None:
        old = build_shared("tiny", shop.argv)
        shop.compiler.write_text(shop.compiler.read_text().replace("12.3.0", "13.1.0"))
        new = build_shared("tiny", shop.argv)
        assert new.parent != old.parent
        assert old.exists()

    def test_a_build_by_any_compiler_where_there_is_none(self, shop: Workshop) -> None:
        path = build_shared("tiny", shop.argv)
        shop.compiler.unlink()
        assert build_shared("tiny", shop.argv) == path
        with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
            build_shared("tiny", shop.argv, force=True)

    def test_the_users_variables(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rank preloads an allocator; a user may speak French; neither is for the compiler."""
        monkeypatch.setenv("LD_PRELOAD", "/nonexistent/libtcmalloc.so")
        monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
        shop.compiler.write_text(shop.compiler.read_text().replace("exec", f"env > {shop.here}/env; exec"))
        build_shared("tiny", shop.argv)
        found = dict(line.partition("=")[::2] for line in (shop.here / "env").read_text().splitlines())
        assert "LD_PRELOAD" not in found
        assert found["LC_ALL"] == "C"
        assert found["TMPDIR"].startswith(str(shop.cache))


@needs_a_compiler
class TestSeveralProcesses:
    def test_one_builds_for_all(self, shop: Workshop) -> None:
        ended = shop.together(4)
        (name,) = shop.built()
        path = shop.cache / "ccl" / name / "tiny.so"
        assert {(one.code, one.out) for one in ended} == {(0, f"{path}\n")}
        assert shop.started == 1
        (builder,) = [one for one in ended if one.err.startswith("plough: building tiny")]
        assert builder.err.splitlines()[1].startswith("plough: ... done in ")
        waits = f"plough: waiting for process {builder.pid} on {socket.gethostname()}, which is building tiny"
        assert {one.err for one in ended if one is not builder} == {f"{waits} ...\n"}

    def test_one_fails_for_all(self, shop: Workshop) -> None:
        shop.source.write_text("int answer() { return x; }\n")
        ended = shop.together(3)
        assert {one.code for one in ended} == {2}
        assert len({one.out for one in ended}) == 1
        assert shop.started == 1
        assert shop.built() == []

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_killed_builder_leaves_nothing_half(self, shop: Workshop, number: int) -> None:
        shop.hold()
        process = shop.process()
        shop.until_started(process)
        process.send_signal(number)
        process.communicate(timeout=60)
        os.killpg(int((shop.here / "started").read_text()), signal.SIGKILL)  # it has a session of its own
        assert existing(shared("tiny", shop.argv)) is None
        assert all(name.startswith(".build-") for name in shop.built())
        shop.go()
        path = build_shared("tiny", shop.argv)
        assert shop.built() == [path.parent.name]

    def test_ctrl_c_ends_the_compiler_too(self, shop: Workshop) -> None:
        shop.hold()
        process = shop.process()
        shop.until_started(process)
        time.sleep(0.5)  # the builder knows of the compiler a moment after it runs
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert shop.built() == []
        compiler = int((shop.here / "started").read_text())
        assert not Path(f"/proc/{compiler}").exists()


@needs_a_compiler
class TestFailures:
    def test_a_mistake(self, shop: Workshop, snapshot: SnapshotAssertion) -> None:
        shop.source.write_text("int answer() {\n  return x;\n}\n")
        with pytest.raises(BuildError) as caught:
            build_shared("tiny", shop.argv)
        assert refused(shop, caught.value) == snapshot
        (log,) = (shop.cache / "ccl").glob("*.log")
        text = log.read_text()
        assert text.splitlines()[0] == caught.value.cause
        assert f"$ {shop.compiler}" in text
        shop.source.write_text("int answer() { return 42; }\n")
        build_shared("tiny", shop.argv)
        assert not log.exists()

    @pytest.mark.parametrize(
        "says",
        [
            "g++: fatal error: Killed signal terminated program cc1plus",
            "g++: error: unrecognized command-line option '-std=c++20'",
            "/tmp/a.s: fatal error: error writing to a.s: No space left on device",
        ],
    )
    def test_a_failure_that_is_known(self, shop: Workshop, says: str, snapshot: SnapshotAssertion) -> None:
        script = shop.compiler.read_text().replace('exec g++ "$@"', f'echo "{says}" >&2; exit 1')
        shop.compiler.write_text(script)
        with pytest.raises(BuildError) as caught:
            build_shared("tiny", shop.argv)
        assert refused(shop, caught.value) == snapshot
        assert shop.built() == []

    def test_the_first_failure_ends_the_others(self, shop: Workshop) -> None:
        product = two_files(shop, bad="int f() { return x; }\n")
        with pytest.raises(BuildError, match=r"bad\.cpp:1:18: error: 'x' was not declared"):
            ensure(product)
        assert shop.built() == []


def two_files(shop: Workshop, bad: str) -> Product:
    """Something whose one file never ends compiling."""
    (shop.here / "bad.cpp").write_text(bad)
    slow = shop.here / "slow"
    slow.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo v; exit; fi\n')
    slow.write_text(slow.read_text() + 'case "$*" in *slow*) exec sleep 600;; esac; exec g++ "$@"\n')
    slow.chmod(0o755)
    steps = tuple(
        build.Step(source=f"{name}.cpp", argv=("-c", f"{name}.cpp"), output=f"{name}.o")
        for name in ("bad", "slow")
    )
    return Product(
        title="two",
        file="two.so",
        prefix="00",
        folder=shop.here,
        steps=lambda: (steps, steps[0]),
        compiler=(str(slow),),
    )


class TestCompiler:
    def test_none(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
        monkeypatch.setattr(build, "COMPILERS", ("no-such-g++",))
        assert find_compiler({}) is None
        with pytest.raises(BuildError) as caught:
            build_shared("tiny", ["no-such-g++", "-shared"])
        assert refused(shop, caught.value) == snapshot

    def test_the_users(self, shop: Workshop) -> None:
        found = find_compiler({Env.CXX: f"  /usr/bin/env {shop.compiler}"})
        assert found is not None
        assert (found.argv, found.version) == (("/usr/bin/env", str(shop.compiler)), "g++ (Test) 12.3.0")

    def test_beside_this_python(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", str(shop.here / "python"))
        found = find_compiler({Env.PATH: "/nonexistent"})
        assert found is not None
        assert (found.argv, found.version) == ((str(shop.compiler),), "g++ (Test) 12.3.0")

    def test_the_users_is_not_words(self) -> None:
        with pytest.raises(BuildError, match="No closing quotation"):
            find_compiler({Env.CXX: "g++ '"})

    @pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 1\n"])
    def test_the_users_is_wrong(
        self, shop: Workshop, script: str | None, snapshot: SnapshotAssertion
    ) -> None:
        shop.compiler.unlink()
        if script is not None:
            shop.compiler.write_text(script)
            shop.compiler.chmod(0o755)
        with pytest.raises(BuildError) as caught:
            find_compiler({Env.CXX: str(shop.compiler)})
        assert refused(shop, caught.value) == snapshot


class TestOneCcl:
    def test_with_the_users_compiler(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(Env.CXX, f"/usr/bin/env {shop.compiler}")
        found = OneCcl(version="2021.16.2", library=Path("/lib/libccl.so.1"), include=Path("/include"))
        product = oneccl_product(found)
        (command,) = commands(product, Path("/build"))
        assert command == [
            "/usr/bin/env",
            str(shop.compiler),
            *compile_command(found)[1:],
            "-o",
            "/build/oneccl_link.so",
        ]
        assert product.prefix != oneccl_product(replace(found, version="2021.16.3")).prefix

    def test_where_it_is_not_installed(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("plough.comm.oneccl.find_oneccl", lambda: NotUsable("oneCCL is not installed"))
        with pytest.raises(LaunchError, match="oneCCL is not installed"):
            build.build_oneccl_shim()

    @needs_a_compiler
    def test_built_and_loaded(self, shop: Workshop) -> None:
        if isinstance(found := find_oneccl(), NotUsable):
            pytest.skip(found.reason)
        path = build.build_oneccl_shim()
        code = f"from plough.comm.oneccl import OneCclShim; OneCclShim({str(path)!r})"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


MODULE = """\
#include <Python.h>
#include "core/answer.h"
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(plough_answer()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "plough_ccl", "", -1, methods};
PyMODINIT_FUNC PyInit_plough_ccl() { return PyModule_Create(&module); }
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A stand-in for csrc, of C Python alone so that it compiles at once."""
    for name, text in {
        "core/answer.h": "int plough_answer();\n",
        "core/answer.cpp": '#include "answer.h"\nint plough_answer() { return 42; }\n',
        "torch/module.cpp": MODULE,
        "oneccl/other.cpp": "#error not part of the extension\n",
    }.items():
        (tmp_path / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / name).write_text(text)
    return tmp_path / "csrc"


class TestExtension:
    @needs_a_compiler
    def test_built_and_loaded(self, shop: Workshop, sources: Path) -> None:
        """In processes of their own: a module stays in the one that loaded it."""
        code = (
            "import sys; from pathlib import Path; from plough.comm import build\n"
            f"path = build.build_extension(sources=Path({str(sources)!r}))\n"
            "module = build.import_extension(path)\n"
            "assert sys.modules['plough_ccl'] is module is build.import_extension(path)\n"
            "print(path, module.answer())"
        )
        for said in (True, False):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
            )
            path, answer = done.stdout.split()
            assert answer == "42"
            assert done.stderr.startswith("plough: building the ccl backend for torch") == said
            details = json.loads((Path(path).parent / "build.json").read_text())
            assert details["instructions"]
        assert shop.built() == [Path(path).parent.name]

    @needs_a_compiler
    def test_one_that_cannot_be_loaded(self, shop: Workshop, snapshot: SnapshotAssertion) -> None:
        path = build_shared("tiny", shop.argv)
        with pytest.raises(BuildError) as caught:
            build.import_extension(path)
        assert refused(shop, caught.value) == snapshot

    def test_commands(self, shop: Workshop, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(Env.CXX, str(shop.compiler))
        module, core, link = commands(extension(sources), Path("/build"))  # the longest first
        assert core[0] == module[0] == link[0] == str(shop.compiler)
        assert core[-4:] == ["-c", "core/answer.cpp", "-o", "/build/core_answer.o"]
        assert any(word.endswith("torch/include") for word in module)
        assert sysconfig.get_path("include", scheme="posix_prefix") in module
        assert any(word.startswith("-Wl,-rpath,") for word in link)
        assert link[-2:] == ["-o", "/build/plough_ccl.so"]

    def test_what_is_there_is_found_without_asking_for_headers(
        self, shop: Workshop, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(build, "_torch_paths", lambda: pytest.fail("asked"))
        assert existing(extension(sources)) is None

    def test_setuptools_is_not_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = build._torch_paths()
        monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
        assert build._torch_paths() == before

    def test_no_headers(
        self, shop: Workshop, sources: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
    ) -> None:
        monkeypatch.setattr(sysconfig, "get_path", lambda *_, **__: str(shop.here / "python3"))
        with pytest.raises(BuildError) as caught:
            commands(extension(sources), Path("/build"))
        assert refused(shop, caught.value) == snapshot

    def test_no_sources(self, shop: Workshop, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
        with pytest.raises(BuildError) as caught:
            extension(tmp_path / "none")
        assert refused(shop, caught.value) == snapshot

    def test_the_real_sources_are_there(self) -> None:
        assert len(extension().steps()[0]) >= 8
