"""The `mpi` launcher: one host, through the mpirun that is there (Intel MPI, MPICH or Open MPI).

MPI only starts the ranks here: placement is the shim's, so every flavour is told not to bind.
"""

from __future__ import annotations

import os
from pathlib import Path

from plough.contract import Env
from plough.errors import LaunchError
from plough.launchers.base import Command, Rendered, job_environment
from plough.plan import LaunchPlan
from plough.topology.machine import Machine

__all__ = ["render_mpi"]


def render_mpi(plan: LaunchPlan, command: Command, *, machine: Machine, job_dir: Path) -> Rendered:
    """Raises LaunchError when no mpirun was found, or one that Plough does not know."""
    mpirun, flavour = machine.software.mpirun, machine.software.mpi_flavour
    if mpirun is None:
        raise LaunchError(
            "--launcher mpi: no mpirun beside this Python or on PATH",
            hint="pip install 'plough[mpi]' brings Intel MPI's, or use --launcher local",
        )
    if len(plan.hosts) > 1:
        raise LaunchError("the mpi launcher starts ranks on this host only")
    flags = {
        # `fork` keeps hydra from asking Slurm or ssh for a host we are already on.
        "intel": ["-bootstrap", "fork", "-n", str(plan.world_size)],
        "mpich": ["-launcher", "fork", "-bind-to", "none", "-n", str(plan.world_size)],
        "openmpi": [
            *("--host", f"localhost:{plan.world_size}", "--bind-to", "none"),
            *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            *("-n", str(plan.world_size)),
        ],
    }.get(flavour or "")
    if flags is None:
        raise LaunchError(
            f"{mpirun}: not an Intel MPI, MPICH or Open MPI that Plough knows",
            hint="pip install 'plough[mpi]', or use --launcher local",
        )
    program = _hydra_of(mpirun) if flavour == "intel" else mpirun
    return Rendered(
        launcher="mpi",
        argv=(program, *flags, *command.exec_argv()),
        environment=job_environment(job_dir, {Env.I_MPI_PIN: "0"} if flavour == "intel" else None),
    )


def _hydra_of(mpirun: str) -> str:
    """Intel's mpirun is a script around mpiexec.hydra.

    It looks for it on PATH, where a virtual environment need not be, and leaves it running when the script
    is killed.
    """
    here = Path(mpirun)
    beside = (folder / "mpiexec.hydra" for folder in (here.parent, here.resolve().parent))
    return str(next((path for path in beside if os.access(path, os.X_OK)), here))
