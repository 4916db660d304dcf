"""Flags that several verbs share, and what they mean as a plan request."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from plough.launchers.inherited import user_environment
from plough.plan import WATCHED, PlanRequest

__all__ = ["add_plan_options", "plan_request", "user_settings"]


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("placement (default: a rank per socket, a thread per core)")
    group.add_argument("--ranks", type=int, metavar="N", help="ranks on this host")
    group.add_argument("--ranks-per-socket", type=int, metavar="N", help="ranks on each socket")
    group.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks on each NUMA node")
    group.add_argument("--threads", type=int, metavar="N", help="compute threads per rank")
    group.add_argument(
        "--reserve-cores",
        type=int,
        metavar="N",
        help="cores per socket left to the system (default: 1 where ranks have 8 cores or more)",
    )
    group.add_argument(
        "--oversubscribe",
        action="store_true",
        help="allow more ranks or threads than cores (slow; for tests)",
    )
    group.add_argument(
        "--memory",
        default="bind",
        choices=["bind", "first-touch"],
        help="bind memory to the rank's own NUMA nodes, or leave it to the kernel (default: bind)",
    )
    group.add_argument(
        "--allocator",
        default="auto",
        choices=["auto", "tcmalloc", "jemalloc", "glibc", "none"],
        help="auto: tcmalloc or jemalloc when found, else glibc tuned; none: leave as it is",
    )
    group.add_argument(
        "--openmp", default="auto", choices=["auto", "intel", "gnu"], help="auto: Intel's when found"
    )
    group.add_argument(
        "--ccl-worker-count", type=int, metavar="N", help="oneCCL threads per rank (default: 1)"
    )


def plan_request(options: argparse.Namespace, user: dict[str, str]) -> PlanRequest:
    return PlanRequest(
        ranks=options.ranks,
        ranks_per_socket=options.ranks_per_socket,
        ranks_per_node=options.ranks_per_node,
        threads=options.threads,
        reserve_cores=options.reserve_cores,
        oversubscribe=options.oversubscribe,
        allocator=options.allocator,
        openmp=options.openmp,
        memory=options.memory,
        ccl_worker_count=options.ccl_worker_count,
        user_environment=user,
    )


def user_settings() -> dict[str, str]:
    """The variables of this shell that a plan must respect."""
    return user_environment(WATCHED, os.environ, proc=Path(f"/proc/{os.getppid()}"))
