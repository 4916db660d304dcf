"""The command line of the `local` launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from plough.errors import LaunchError
from plough.launchers import Command
from plough.launchers.local import render_local
from plough.plan import LaunchPlan, PlanRequest, make_plan
from tests.machines.trees import described

JOB = Path("/run/job")
MACHINE = described("xeon-2x24")
EXEC = (sys.executable, "-m", "plough", "exec")


def plan(ranks: int | None = None) -> LaunchPlan:
    return make_plan([MACHINE], PlanRequest(ranks=ranks))


def test_several_ranks() -> None:
    command = Command(target="train.py", arguments=("--lr", "1e-4"))
    found = render_local(plan(), command, machine=MACHINE, job_dir=JOB)
    assert found.launcher == "local"
    assert found.argv == (
        *(sys.executable, "-m", "torch.distributed.run"),
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        "--max-restarts=0",
        "--no-python",
        *(*EXEC, "train.py", "--lr", "1e-4"),
    )
    assert found.environment == {"PLOUGH_JOB_DIR": "/run/job", "OMP_NUM_THREADS": "23"}


def test_one_rank_needs_no_agent() -> None:
    found = render_local(plan(1), Command(target="train.py"), machine=MACHINE, job_dir=JOB)
    assert found.argv == (*EXEC, "train.py")
    assert found.environment == {"PLOUGH_JOB_DIR": "/run/job"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Command(target="a.py"), ("a.py",)),
        (
            Command(target="a.b", module=True, arguments=("-m", "--no-compat")),
            ("-m", "a.b", "-m", "--no-compat"),
        ),
        (Command(target="a.py", compat=False, arguments=("",)), ("--no-compat", "a.py", "")),
    ],
)
def test_commands(command: Command, words: tuple[str, ...]) -> None:
    assert render_local(plan(1), command, machine=MACHINE, job_dir=JOB).argv == (*EXEC, *words)


def test_the_line_for_a_shell() -> None:
    found = render_local(plan(1), Command(target="my train.py"), machine=MACHINE, job_dir=Path("/a b"))
    assert found.shell() == f"env PLOUGH_JOB_DIR='/a b' {sys.executable} -m plough exec 'my train.py'"


def test_several_hosts_are_refused() -> None:
    two = make_plan([MACHINE, replace(MACHINE, hostname="other")])
    with pytest.raises(LaunchError, match="on this host only"):
        render_local(two, Command(target="a.py"), machine=MACHINE, job_dir=JOB)
