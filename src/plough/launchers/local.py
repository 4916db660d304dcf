"""The `local` launcher: one host, through torch.distributed.elastic's own command.

It only writes the command line; torch is imported by the process that line starts, never here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plough.contract import Env
from plough.errors import LaunchError
from plough.launchers.base import Command, Rendered, job_environment
from plough.plan import LaunchPlan
from plough.topology.machine import Machine

__all__ = ["render_local"]


def render_local(plan: LaunchPlan, command: Command, *, machine: Machine, job_dir: Path) -> Rendered:
    """One agent for all ranks of this host; a single rank needs no agent and starts directly."""
    if len(plan.hosts) > 1:
        raise LaunchError("the local launcher starts ranks on this host only")
    environment = job_environment(job_dir)
    if plan.world_size == 1:
        return Rendered(launcher="local", argv=tuple(command.exec_argv()), environment=environment)
    agent = [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nproc-per-node={plan.world_size}",
        # The agent picks the port and keeps it, so that two jobs on one host cannot meet.
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"),
        "--max-restarts=0",
        "--no-python",
    ]
    # Set here, torchrun neither warns nor decides; each rank's shim sets the planned value.
    environment[Env.OMP_NUM_THREADS] = str(plan.ranks[0].threads)
    return Rendered(launcher="local", argv=(*agent, *command.exec_argv()), environment=environment)
