"""Put the calling process where the plan says: CPU affinity and memory policy, both unprivileged.

The one part of the shim that talks to the kernel. Both settings survive exec, which is the point.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence

from plough.contract import MemoryPolicy

__all__ = ["apply_placement", "bind_memory", "die_with_parent"]

# set_mempolicy(2), by `uname -m`; glibc has no wrapper for it outside libnuma.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_MPOL_BIND = 2
_PR_SET_PDEATHSIG = 1


def apply_placement(cpus: Sequence[int], memory: MemoryPolicy) -> list[str]:
    """Bind this process; returns what could not be done, in words, for the report."""
    problems = []
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            problems.append(f"cores {_list(cpus)} could not be bound to: {error.strerror}")
    if memory.mode == "bind":
        failure = bind_memory(memory.nodes)
        if failure:
            problems.append(
                f"memory could not be bound to node {_list(memory.nodes)} ({failure}); "
                "first touch by bound threads keeps it there unless threads move"
            )
    return problems


def bind_memory(nodes: Sequence[int]) -> str | None:
    """MPOL_BIND to `nodes` for this thread and what it execs; None on success, else the reason."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no set_mempolicy known for {platform.machine()}"
    width = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (max(nodes) // width + 1))()
    for node in nodes:
        mask[node // width] |= 1 << (node % width)
    libc = ctypes.CDLL(None, use_errno=True)
    # maxnode counts one more than the bits the kernel reads.
    if libc.syscall(number, _MPOL_BIND, mask, len(mask) * width + 1) == 0:
        return None
    return os.strerror(ctypes.get_errno())


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel to signal this process when its parent thread ends; survives exec."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
