"""The command line of the `mpi` launcher, for each MPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from plough.errors import LaunchError
from plough.launchers import Command, Rendered
from plough.launchers.mpi import render_mpi
from plough.plan import make_plan
from plough.topology.machine import Machine, Software
from tests.machines.trees import described

EXEC = (sys.executable, "-m", "plough", "exec", "train.py", "--lr", "1")


def machine(mpirun: str | None, flavour: str | None) -> Machine:
    return replace(described("xeon-2x24"), software=Software(mpirun=mpirun, mpi_flavour=flavour))


def rendered(it: Machine) -> Rendered:
    command = Command(target="train.py", arguments=("--lr", "1"))
    return render_mpi(make_plan([it]), command, machine=it, job_dir=Path("/run/job"))


@pytest.fixture(autouse=True)
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_mpich() -> None:
    found = rendered(machine("/opt/bin/mpirun", "mpich"))
    assert found.argv == ("/opt/bin/mpirun", "-launcher", "fork", "-bind-to", "none", "-n", "2", *EXEC)
    assert found.environment == {"PLOUGH_JOB_DIR": "/run/job"}


@pytest.mark.parametrize(("user", "extra"), [(1000, ()), (0, ("--allow-run-as-root",))])
def test_open_mpi(monkeypatch: pytest.MonkeyPatch, user: int, extra: tuple[str, ...]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = rendered(machine("/opt/bin/mpirun", "openmpi"))
    assert found.argv == (
        *("/opt/bin/mpirun", "--host", "localhost:2", "--bind-to", "none", *extra, "-n", "2"),
        *EXEC,
    )
    assert found.environment == {"PLOUGH_JOB_DIR": "/run/job"}


def hydra(folder: Path) -> str:
    """The mpirun of a folder that has an mpiexec.hydra."""
    folder.mkdir()
    for name in ("mpirun", "mpiexec.hydra"):
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    return str(folder / "mpirun")


def test_intel_mpi_needs_nothing_on_path(tmp_path: Path) -> None:
    found = rendered(machine(hydra(tmp_path / "bin"), "intel"))
    assert found.argv == (f"{tmp_path}/bin/mpiexec.hydra", "-bootstrap", "fork", "-n", "2", *EXEC)
    assert found.environment == {"PLOUGH_JOB_DIR": "/run/job", "I_MPI_PIN": "0"}


def test_a_link_to_intel_mpi(tmp_path: Path) -> None:
    (tmp_path / "mpirun").symlink_to(hydra(tmp_path / "bin"))
    found = rendered(machine(str(tmp_path / "mpirun"), "intel"))
    assert found.argv[0] == f"{tmp_path}/bin/mpiexec.hydra"


def test_intel_mpi_laid_out_in_no_known_way() -> None:
    assert rendered(machine("/nowhere/mpirun", "intel")).argv[0] == "/nowhere/mpirun"


@pytest.mark.parametrize(
    ("mpirun", "cause", "hint"),
    [
        (None, "--launcher mpi: no mpirun beside this Python or on PATH", "plough[mpi]"),
        ("/opt/bin/mpirun", "/opt/bin/mpirun: not an Intel MPI, MPICH or Open MPI", "--launcher local"),
    ],
)
def test_refused(mpirun: str | None, cause: str, hint: str) -> None:
    with pytest.raises(LaunchError) as caught:
        rendered(machine(mpirun, None))
    assert caught.value.cause.startswith(cause)
    assert hint in str(caught.value.hint)


def test_several_hosts_are_refused() -> None:
    it = machine("/opt/bin/mpirun", "mpich")
    plan = make_plan([it, replace(it, hostname="other")])
    with pytest.raises(LaunchError, match="on this host only"):
        render_mpi(plan, Command(target="a.py"), machine=it, job_dir=Path("/run/job"))
