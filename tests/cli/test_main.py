"""`plough` itself: help, wrong use, and that no error is a traceback."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

import plough as package
from plough.cli import main as main_module
from plough.cli.main import VERBS
from tests.cli.conftest import Plough


def test_help(plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough("--help")
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb(verb: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough(verb, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


def test_version(plough: Plough) -> None:
    assert plough("--version") == (0, f"plough {package.__version__}\n", "")


WRONG = [
    "",
    "plna",
    "--ranks 2 plan",
    "plan --rank 2",
    "plan extra",
    "plan --ranks two",
    "plan --ranks",
    "plan --memory near",
    "plan --allocator mimalloc",
    "plan --openmp llvm",
    "probe --jsn",
    "build --jobs 2",
    "run",
    "run --ranks 2",
    "run --launcher slurm train.py",
    "run nosuch.py --lr 1",
    "run -m",
    "exec",
    "exec nosuch.py",
    "train",
    "train vision",
    "train --ranks 2",
    "ask --model out",
]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use(line: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough(*line.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


def test_ctrl_c(plough: Plough, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("plough.cli.probe.run", interrupted)
    assert plough("probe") == (130, "", "interrupted\n")


def test_entry_ends_with_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["plough", "plna"])
    with pytest.raises(SystemExit) as ended:
        main_module.entry()
    assert ended.value.code == 2
