"""Which cores each rank gets: machine and request in, shares out. Pure.

Knows nothing of environment variables (`environment.py`) and touches nothing outside its arguments.

The rules, in the order they apply:
1. Only cores with an allowed logical CPU count, each once, whatever its SMT siblings.
2. A CPU quota below that wins, and then ranks are not bound: a quota without a cpuset does not say
   which cores are ours, and every other container on the host would pick the same ones.
3. The host falls into domains: sockets, or NUMA nodes where a socket has several of them.
4. A rank per domain unless asked otherwise; all ranks of a host get equally many threads, because the
   slowest decides the step.
5. One core per socket stays with the system where ranks have 8 or more and own the socket whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from plough.errors import PlanError
from plough.plan.plan import Domain, PlanRequest
from plough.topology.machine import Machine

__all__ = ["HostShares", "Share", "domains_of", "share_host", "usable_cpus"]

RESERVE_FROM = 8
"""A rank of at least this many cores can spare its socket one for the system."""

REAL_SOCKET_CORES = 4
"""Sockets smaller than this inside one NUMA node are how a hypervisor shows vCPUs, not sockets."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of its host. `cpus` empty: not bound. `helper_cpu`: for communication threads."""

    threads: int
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    sockets: tuple[int, ...]
    helper_cpu: int | None


class HostShares(msgspec.Struct, frozen=True, kw_only=True):
    shares: tuple[Share, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def usable_cpus(machine: Machine) -> dict[int, tuple[int, int]]:
    """The first allowed logical CPU of every usable core, mapped to (socket, node), in core order."""
    allowed = set(machine.limits.cpus)
    first = ((core, next((cpu for cpu in core.cpus if cpu in allowed), None)) for core in machine.cores)
    return {cpu: (core.socket, core.node) for core, cpu in first if cpu is not None}


def domains_of(machine: Machine, kind: str = "auto") -> tuple[Domain, ...]:
    """Split the usable cores into "socket" or "node" domains; "auto" chooses as the module says."""
    cpus = usable_cpus(machine)
    if kind == "auto":
        kind = _natural_kind(machine, cpus)
    groups: dict[int, list[int]] = {}
    for cpu, (socket, node) in cpus.items():
        groups.setdefault(socket if kind == "socket" else node, []).append(cpu)
    return tuple(
        Domain(
            kind="socket" if kind == "socket" else "NUMA node",
            socket=cpus[members[0]][0],
            nodes=tuple(sorted({cpus[cpu][1] for cpu in members})),
            cpus=tuple(members),
        )
        for _, members in sorted(groups.items())
    )


def _natural_kind(machine: Machine, cpus: dict[int, tuple[int, int]]) -> str:
    places = set(cpus.values())
    if len({node for _, node in places}) > len({socket for socket, _ in places}):
        return "node"  # sub-NUMA clustering: several nodes in a socket
    per_socket: dict[int, int] = {}
    for core in machine.cores:
        per_socket[core.socket] = per_socket.get(core.socket, 0) + 1
    artificial = len(per_socket) > 1 and max(per_socket.values()) < REAL_SOCKET_CORES
    return "node" if artificial else "socket"


def share_host(machine: Machine, request: PlanRequest) -> HostShares:
    """Divide one host among its ranks.

    Raises PlanError when the request does not fit, with what would.
    """
    _check(request)
    cpus = usable_cpus(machine)
    if not cpus:
        raise PlanError(
            f"{machine.hostname}: no online core is in the allowed set of CPUs",
            hint="look at `plough probe` and at the cpuset or taskset mask of this shell",
        )
    reasons = [_describe(machine, len(cpus))]
    warnings: list[str] = []
    quota = machine.limits.quota_cpus
    if quota is not None and quota < len(cpus):
        return _share_quota(machine, request, quota, reasons, warnings)
    groups = _group(machine, request, len(cpus), reasons)
    reserved = _reserve(machine, request, groups, reasons)
    groups = [[cpu for cpu in group if cpu not in reserved] for group in groups]
    smallest = min(map(len, groups))
    if smallest == 0:
        raise PlanError(
            f"{machine.hostname}: {len(groups)} ranks do not fit into {len(cpus) - len(reserved)} cores"
            + (f" after {len(reserved)} reserved" if reserved else ""),
            hint=f"ask for at most {max(1, len(cpus) - len(reserved))} ranks, fewer reserved cores, "
            "or --oversubscribe to share cores (slow; for tests)",
        )
    threads = _threads(machine, request, smallest, reasons, warnings)
    idle = sum(len(group) - smallest for group in groups)
    if idle:
        reasons.append(
            f"{idle} core{'s' * (idle > 1)} left idle so that all {len(groups)} ranks are equally fast"
        )
    return HostShares(
        shares=tuple(
            _share(group[:smallest], cpus, threads, _helper(group[:smallest], cpus, reserved))
            for group in groups
        ),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def _check(request: PlanRequest) -> None:
    asked = {
        "--ranks": request.ranks,
        "--ranks-per-socket": request.ranks_per_socket,
        "--ranks-per-node": request.ranks_per_node,
    }
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise PlanError(f"{' and '.join(given)} contradict each other", hint="give one of them")
    for name, value in {**asked, "--threads": request.threads}.items():
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: at least 1 is needed")
    if request.reserve_cores is not None and request.reserve_cores < 0:
        raise PlanError(f"--reserve-cores {request.reserve_cores}: cannot be negative")


def _describe(machine: Machine, usable: int) -> str:
    logical = sum(len(core.cpus) for core in machine.cores)
    whole = len(machine.cores)
    nodes = len({core.node for core in machine.cores})
    text = f"{_count(len(machine.sockets), 'socket')}, {_count(nodes, 'NUMA node')}, {_count(whole, 'core')}"
    if logical > whole:
        text += f" ({logical} logical CPUs; SMT siblings are not counted)"
    if usable < whole:
        text += f", of which this process may use {usable}"
    return text


def _share_quota(
    machine: Machine, request: PlanRequest, quota: float, reasons: list[str], warnings: list[str]
) -> HostShares:
    budget = max(1, math.floor(quota))
    ranks = request.ranks or 1
    if request.ranks_per_socket or request.ranks_per_node:
        raise PlanError(
            f"{machine.hostname}: a CPU quota of {quota:g} does not say which sockets are ours",
            hint=f"use --ranks N (at most {budget}) instead of ranks per socket or node",
        )
    if ranks > budget and not request.oversubscribe:
        raise PlanError(
            f"{machine.hostname}: {ranks} ranks do not fit into a CPU quota of {quota:g}",
            hint=f"ask for at most {budget} ranks, or raise the container's CPU limit",
        )
    reasons.append(
        f"the cgroup's CPU quota of {quota:g} wins over the host's cores; ranks are not bound, "
        "because a quota does not say which cores are ours"
    )
    threads = _threads(machine, request, max(1, budget // ranks), reasons, warnings)
    nodes = tuple(sorted(node.id for node in machine.nodes))
    share = Share(threads=threads, cpus=(), nodes=nodes, sockets=machine.sockets, helper_cpu=None)
    return HostShares(shares=(share,) * ranks, reasons=tuple(reasons), warnings=tuple(warnings))


def _group(machine: Machine, request: PlanRequest, cores: int, reasons: list[str]) -> list[list[int]]:
    """Cores of each rank before any is reserved, in rank order."""
    if request.ranks_per_socket is not None or request.ranks_per_node is not None:
        kind = "socket" if request.ranks_per_socket is not None else "node"
        each = request.ranks_per_socket or request.ranks_per_node or 1
        domains = domains_of(machine, kind)
        reasons.append(f"{_count(each, 'rank')} per {domains[0].kind}, as asked")
        return [part for domain in domains for part in _split(domain.cpus, each, request)]
    domains = domains_of(machine)
    if request.ranks is None:
        # d domains give d times the smallest of them; leave out domains that would hold the rest back.
        by_size = sorted(domains, key=lambda domain: -len(domain.cpus))
        best = max(range(1, len(by_size) + 1), key=lambda d: (d * len(by_size[d - 1].cpus), -d))
        chosen = sorted(by_size[:best], key=lambda domain: domain.cpus)
        why = f"a rank per {domains[0].kind}"
        if domains[0].kind == "NUMA node" and len(domains) > len({domain.socket for domain in domains}):
            why += ", since each socket has several"
        if len(chosen) < len(domains):
            why += f", {len(domains) - len(chosen)} with too few allowed cores left out"
        reasons.append(why)
        return [list(domain.cpus) for domain in chosen]
    ranks = request.ranks
    reasons.append(f"{_count(ranks, 'rank')}, as asked")
    if ranks % len(domains) == 0:
        return [part for domain in domains for part in _split(domain.cpus, ranks // len(domains), request)]
    if len(domains) % ranks == 0:
        width = len(domains) // ranks
        return [
            [cpu for domain in domains[i * width : (i + 1) * width] for cpu in domain.cpus]
            for i in range(ranks)
        ]
    reasons.append(f"{ranks} ranks do not divide {len(domains)} {domains[0].kind}s: some ranks span two")
    return _split([cpu for domain in domains for cpu in domain.cpus], ranks, request)


def _split(cpus: Sequence[int], parts: int, request: PlanRequest) -> list[list[int]]:
    """Contiguous parts whose sizes differ by at most one; cores are shared when oversubscribed."""
    if parts > len(cpus) and request.oversubscribe:
        return [[cpus[i * len(cpus) // parts]] for i in range(parts)]
    edges = [len(cpus) * i // parts for i in range(parts + 1)]
    return [list(cpus[a:b]) for a, b in itertools.pairwise(edges)]


def _reserve(machine: Machine, request: PlanRequest, groups: list[list[int]], reasons: list[str]) -> set[int]:
    """The logical CPUs left to the system: the first cores of each socket."""
    usable = usable_cpus(machine)
    by_socket: dict[int, list[int]] = {}
    for cpu, (socket, _) in usable.items():
        by_socket.setdefault(socket, []).append(cpu)
    if request.reserve_cores is not None:
        taken = {cpu for cpus in by_socket.values() for cpu in cpus[: request.reserve_cores]}
        if taken:
            reasons.append(f"{_count(request.reserve_cores, 'core')} per socket left to the system, as asked")
        return taken
    whole = {s: sum(core.socket == s for core in machine.cores) for s in by_socket}
    roomy = min(map(len, groups)) >= RESERVE_FROM
    taken = {cpus[0] for s, cpus in by_socket.items() if roomy and len(cpus) == whole[s]}
    if taken:
        reasons.append("one core per socket is left to the system and to communication")
    return taken


def _threads(
    machine: Machine, request: PlanRequest, share: int, reasons: list[str], warnings: list[str]
) -> int:
    if request.threads is None:
        reasons.append(f"{_count(share, 'thread')} per rank: one per core of its share")
        return share
    if request.threads > share and not request.oversubscribe:
        raise PlanError(
            f"{machine.hostname}: --threads {request.threads} is more than the {_count(share, 'core')} "
            "of a rank's share",
            hint=f"ask for at most {share}, or for fewer ranks or reserved cores",
        )
    reasons.append(f"{_count(request.threads, 'thread')} per rank, as asked")
    if request.threads < share:
        warnings.append(f"--threads {request.threads} uses {request.threads} of {share} cores of each rank")
    return request.threads


def _share(group: list[int], cpus: dict[int, tuple[int, int]], threads: int, helper: int | None) -> Share:
    return Share(
        threads=threads,
        cpus=tuple(group),
        nodes=tuple(sorted({cpus[cpu][1] for cpu in group})),
        sockets=tuple(sorted({cpus[cpu][0] for cpu in group})),
        helper_cpu=helper,
    )


def _helper(group: list[int], cpus: dict[int, tuple[int, int]], reserved: set[int]) -> int:
    """Where communication threads go: the socket's reserved core, else the rank's own last one."""
    socket = cpus[group[0]][0]
    return next((cpu for cpu in sorted(reserved) if cpus[cpu][0] == socket), group[-1])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
