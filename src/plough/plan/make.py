"""`make_plan`: machines and a request in, a launch plan out. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Sequence

from plough.contract import MemoryPolicy
from plough.errors import PlanError
from plough.plan.binding import Share, share_host
from plough.plan.environment import rank_environment
from plough.plan.plan import LaunchPlan, PlanRequest, RankPlan
from plough.plan.tuned import left_to_us, tuned_words
from plough.topology.machine import Machine

__all__ = ["make_plan"]


def make_plan(machines: Sequence[Machine], request: PlanRequest | None = None) -> LaunchPlan:
    """Place ranks on `machines`, hosts in the order given, ranks of a host next to each other.

    Raises PlanError when the request cannot be met, naming what could be.
    """
    request = left_to_us(request or PlanRequest())
    if not machines:
        raise PlanError("a plan needs at least one machine", hint="pass [probe()] to plan for this one")
    if request.memory not in ("bind", "first-touch"):
        raise PlanError(f"--memory {request.memory}: unknown", hint="one of bind, first-touch")
    hosts = len(machines) + request.other_hosts
    ranks: list[RankPlan] = []
    reasons: list[str] = []
    warnings: list[str] = []
    for machine in machines:
        prefix = f"{machine.hostname}: " if len(machines) > 1 else ""
        host = share_host(machine, request)
        memory_reason = _memory_reason(machine, request, host.shares)
        reasons += [prefix + reason for reason in (*host.reasons, memory_reason)]
        memory_warnings = _memory_warnings(machine, request, host.shares)
        warnings += [prefix + warning for warning in (*host.warnings, *memory_warnings)]
        for local_rank, share in enumerate(host.shares):
            environment = rank_environment(machine, request, host.shares, local_rank, hosts=hosts)
            if local_rank == 0 and environment.threads != share.threads:
                reasons.append(
                    f"{prefix}{environment.threads} threads per rank in the end, by the variables you set"
                )
            warnings += [prefix + w for w in environment.warnings if prefix + w not in warnings]
            ranks.append(
                RankPlan(
                    rank=len(ranks),
                    local_rank=local_rank,
                    local_world_size=len(host.shares),
                    host=machine.hostname,
                    sockets=share.sockets,
                    nodes=share.nodes,
                    threads=environment.threads,
                    cpus=share.cpus,
                    memory=_memory(machine, request, share),
                    preloads=environment.preloads,
                    settings=environment.settings,
                )
            )
    tuned = tuned_words(request, ranks[0].threads)
    reasons += [tuned] if tuned is not None else []
    return LaunchPlan(
        backend=request.backend, ranks=tuple(ranks), reasons=tuple(reasons), warnings=tuple(warnings)
    )


def _memory(machine: Machine, request: PlanRequest, share: Share) -> MemoryPolicy:
    """Binding is worth something only where there is more than one node to be wrong about."""
    nodes = tuple(node for node in share.nodes if node in machine.limits.nodes)
    if request.memory == "first-touch" or not share.cpus or len(machine.nodes) < 2 or not nodes:
        return MemoryPolicy(mode="first-touch")
    return MemoryPolicy(mode="bind", nodes=nodes)


def _memory_reason(machine: Machine, request: PlanRequest, shares: Sequence[Share]) -> str:
    if request.memory == "first-touch":
        return "memory comes from the node of the thread that first touches it, as asked"
    if len(machine.nodes) < 2:
        return "there is one NUMA node, so memory needs no binding"
    if not shares[0].cpus:
        return "memory is not bound either: the kernel may move ranks from node to node"
    return "memory comes from each rank's own NUMA nodes"


def _memory_warnings(machine: Machine, request: PlanRequest, shares: Sequence[Share]) -> list[str]:
    """A cpuset may give cores of one node and memory of another."""
    if request.memory == "first-touch" or len(machine.nodes) < 2:
        return []
    own = {node for share in shares if share.cpus for node in share.nodes}
    barred = sorted(own - set(machine.limits.nodes))
    if not barred:
        return []
    return [
        f"NUMA node {', '.join(map(str, barred))} gives this process cores but no memory (cpuset): "
        "its pages come from other nodes, which is slower"
    ]
