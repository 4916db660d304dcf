"""What a rank inherited from the launcher it did not choose, told apart from what the user set.

torchrun sets OMP_NUM_THREADS=1 when nobody did; Open MPI and srun bind each rank to cores of their own
choosing. Both reach the rank looking exactly like a user's wish. The parent process gives it away.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from plough.contract import Env

__all__ = ["bound_by_launcher", "user_environment"]


def user_environment(names: Iterable[str], env: Mapping[str, str], *, proc: Path) -> dict[str, str]:
    """The variables among `names` that the user set, as far as can be known.

    proc: the /proc folder of the parent process. A process's `environ` there is what it was started with,
    so a variable that the torchrun agent has added to its own later is not in it.
    """
    found = {name: env[name] for name in names if name in env}
    if Env.TORCHELASTIC_RUN_ID not in env:
        return found
    # torchrun's own rendezvous, already right; not a wish of the user's.
    for name in (Env.MASTER_ADDR, Env.MASTER_PORT):
        found.pop(name, None)
    if found.get(Env.OMP_NUM_THREADS) == "1" and not _started_with(Env.OMP_NUM_THREADS, proc):
        del found[Env.OMP_NUM_THREADS]
    return found


def _started_with(name: str, proc: Path) -> bool:
    """Whether a process was given the variable; True when that cannot be known."""
    try:
        initial = (proc / "environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(entry.startswith(f"{name}=".encode()) for entry in initial)


def bound_by_launcher(parent: int) -> bool:
    """Whether this process may use fewer CPUs than its parent: its launcher bound it, rank by rank."""
    try:
        theirs = os.sched_getaffinity(parent)
    except OSError:
        return False
    return os.sched_getaffinity(0) < theirs
