"""`plough doctor versions`: help, what it says of made-up environments, JSON, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from plough.cli.doctor import Report
from plough.contract import Env
from plough.doctor import Facts, judge
from plough.doctor.facts import Trial
from tests.cli.conftest import Plough
from tests.doctor.made_up import GOMP, INTEL, IOMP, LIBCCL, OPENMPI, WHOLE, WORKED, failed, spoilt, untried

TROUBLED = spoilt(
    {"oneccl-cpu": "2021.17.2", "transformers": "4.57.6", "oneccl-bind-pt": "2.8.0+cpu"},
    {
        f"libccl {LIBCCL}": failed(
            "OSError: libccl.so.2: cannot open shared object file: No such file or directory"
        ),
        "bindings": failed("ImportError: liboneccl_bindings_for_pytorch.so: undefined symbol: _ZN5torch3jit"),
        "torch": replace(WHOLE.trials["torch"], found={"cuda": "12.8", "gpu": "no"}),
        "transformers": Trial(outcome="worked", libraries=(GOMP, IOMP)),
        "ccl": failed(
            "exit code 1, without a word",
            cause="the ccl backend has to be compiled once, and there is no C++ compiler here",
            hint="Debian, Ubuntu: `apt install g++`; or choose `--ddp_backend gloo`, which needs no building",
        ),
        "compiler": None,
        "mpirun /usr/bin/mpirun": Trial(outcome="worked", said="mpirun (Open MPI) 4.1.4"),
        "libmpi /usr/bin/mpirun": WORKED,
    },
    launchers=(OPENMPI, replace(INTEL, on_path=False)),
    compiler=None,
)
WARNED = spoilt(trials={"ccl": failed("x", cause="cannot be built")})


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Facts], None]:
    """Makes the doctor find these facts."""

    def of(facts: Facts) -> None:
        def gather(*, quick: bool, progress: Callable[[str], None]) -> Facts:
            progress("trying torch, gloo")
            return untried(facts) if quick else facts

        monkeypatch.setattr("plough.cli.doctor.gather", gather)

    return of


@pytest.mark.parametrize("words", ["doctor --help", "doctor versions --help"])
def test_help(words: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough(*words.split())
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


@pytest.mark.parametrize("words", ["doctor", "doctor version", "doctor versions --jsn", "doctor versions x"])
def test_wrong_use(words: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough(*words.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


@pytest.mark.parametrize(
    ("facts", "code"), [(WHOLE, 0), (WARNED, 1), (TROUBLED, 2)], ids=["whole", "warned", "troubled"]
)
def test_in_words(
    facts: Facts, code: int, of: Callable[[Facts], None], plough: Plough, snapshot: SnapshotAssertion
) -> None:
    of(facts)
    said = plough("doctor", "versions")
    assert (said.code, said.err) == (code, "")
    assert said.out == snapshot


def test_quick(of: Callable[[Facts], None], plough: Plough, snapshot: SnapshotAssertion) -> None:
    of(TROUBLED)
    assert plough("doctor", "versions", "--quick") == snapshot


def test_json(of: Callable[[Facts], None], plough: Plough) -> None:
    of(TROUBLED)
    said = plough("doctor", "versions", "--json")
    report = msgspec.json.decode(said.out, type=Report)
    assert (said.code, report.exit_code) == (2, 2)
    assert (report.facts, report.findings) == (TROUBLED, judge(TROUBLED))


def test_colours_and_progress_on_a_terminal_only(
    of: Callable[[Facts], None], plough: Plough, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(TROUBLED)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = plough("doctor", "versions")
    assert "\x1b" not in said.out
    assert said.err == "plough: trying torch, gloo\n"
    monkeypatch.delenv(Env.NO_COLOR)
    assert "\x1b[31merror\x1b[0m    oneccl" in plough("doctor", "versions").out


def test_here_and_quick(plough: Plough) -> None:
    said = plough("doctor", "versions", "--quick", "--json")
    report = msgspec.json.decode(said.out, type=Report)
    assert (report.facts.quick, report.facts.trials) == (True, {})
    assert said.err == "plough: --quick: nothing was tried; `plough doctor versions` tries everything\n"
