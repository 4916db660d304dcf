"""What the user set, told apart from what a launcher did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plough.launchers.inherited import bound_by_launcher, user_environment
from plough.plan import WATCHED

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "4000", "MASTER_ADDR": "vm"}

# the rank's variables, what its parent was started with (None: cannot be read) -> what the user set
CASES: dict[str, tuple[dict[str, str], dict[str, str] | None, dict[str, str]]] = {
    "nothing": ({}, {}, {}),
    "only watched names": ({"HOME": "/", "OMP_NUM_THREADS": "4"}, {}, {"OMP_NUM_THREADS": "4"}),
    "mpirun": (
        {"OMP_NUM_THREADS": "1", "MASTER_PORT": "1"},
        {},
        {"OMP_NUM_THREADS": "1", "MASTER_PORT": "1"},
    ),
    "torchrun's own 1": ({**TORCHRUN, "OMP_NUM_THREADS": "1"}, {}, {}),
    "the user's 1 under torchrun": (
        {**TORCHRUN, "OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "1"},
    ),
    "the user's 4 under torchrun": (
        {**TORCHRUN, "OMP_NUM_THREADS": "4"},
        {"OMP_NUM_THREADS": "4"},
        {"OMP_NUM_THREADS": "4"},
    ),
    "a parent of somebody else": (
        {**TORCHRUN, "OMP_NUM_THREADS": "1"},
        None,
        {"OMP_NUM_THREADS": "1"},
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_user_environment(case: str, tmp_path: Path) -> None:
    env, parent, expected = CASES[case]
    if parent is not None:
        (tmp_path / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in parent.items()))
    assert user_environment(WATCHED, env, proc=tmp_path) == expected


def test_a_process_knows_when_it_was_bound() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    code = (
        "import os, sys; from plough.launchers.inherited import bound_by_launcher\n"
        "before = bound_by_launcher(os.getppid())\n"
        f"os.sched_setaffinity(0, [{cpus[0]}])\n"
        "print(before, bound_by_launcher(os.getppid()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False True\n"


def test_a_parent_that_is_gone_has_bound_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert bound_by_launcher(gone.pid) is False
