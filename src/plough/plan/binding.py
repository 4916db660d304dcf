"""Which cores each rank gets: machine and request in, shares out. Pure.

Knows nothing of environment variables (`environment.py`) and touches nothing outside its arguments.

The rules, in the order they apply:
1. Only cores with an allowed logical CPU count, each once, whatever its SMT siblings.
2. A CPU quota below that wins, and then ranks are not bound: a quota without a cpuset does not say
   which cores are ours, and every other container on the host would pick the same ones.
3. The host falls into domains: sockets, or NUMA nodes where a socket has several of them or where the
   sockets are only a hypervisor's way of showing vCPUs.
4. One core per socket stays with the system where ranks have 8 or more and own the socket whole.
5. A rank per domain unless asked otherwise; all ranks of a host get equally many threads, because the
   slowest decides the step.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from plough.errors import PlanError
from plough.plan.domains import REAL_SOCKET_CORES, Domain, domains_of, has_artificial_sockets, usable_cpus
from plough.plan.plan import PlanRequest
from plough.topology.machine import Machine

__all__ = ["HostShares", "Share", "share_host"]

RESERVE_FROM = 8
"""A rank of at least this many cores can spare its socket one for the system."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of its host.

    cpus: logical CPUs, one per core; empty when the rank is not bound. sockets: ordinals, from 0.
    helper_cpus: where its communication threads may go, best first; empty when the rank is not bound.
    """

    threads: int
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    sockets: tuple[int, ...]
    helper_cpus: tuple[int, ...] = ()


class HostShares(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of one host in local rank order, why they are so, and what the user should know."""

    shares: tuple[Share, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


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
    groups, group_reasons = _group(machine, request)
    reserved, reserve_reason = _reserve(machine, request, cpus, min(map(len, groups)))
    if len(reserved) == len(cpus):
        raise PlanError(
            f"{machine.hostname}: --reserve-cores {_wanted_reserve(request)[0]} leaves no core to the ranks",
            hint="reserve fewer cores",
        )
    if reserved:
        groups, group_reasons = _group(machine, request, without=reserved)
    reasons += [*group_reasons, *reserve_reason]
    smallest, free = min(map(len, groups)), len(cpus) - len(reserved)
    if smallest == 0:
        gone = f" after reserving {len(reserved)}" if reserved else ""
        raise PlanError(
            f"{machine.hostname}: {_no_fit(len(groups))} {_count(free, 'core')}{gone}", hint=_what_fits(free)
        )
    if len(groups) > free:
        warnings.append(
            f"{len(groups)} ranks on {_count(free, 'core')}: ranks take turns on a core, "
            "and each step waits for the slowest"
        )
    threads = _threads(machine, request, smallest, reasons, warnings)
    over = sum(len(group) - smallest for group in groups)
    if over:
        reasons.append(f"{_count(over, 'core')} left over so that all {len(groups)} ranks are equally fast")
    helpers = _helpers(groups, smallest, cpus, reserved)
    return HostShares(
        shares=tuple(
            Share(
                threads=threads,
                cpus=tuple(group[:smallest]),
                nodes=tuple(sorted({cpus[cpu][1] for cpu in group[:smallest]})),
                sockets=tuple(sorted({cpus[cpu][0] for cpu in group[:smallest]})),
                helper_cpus=helper,
            )
            for group, helper in zip(groups, helpers, strict=True)
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
        raise PlanError(
            f"{', '.join(given[:-1])} and {given[-1]} contradict each other", hint="give one of them"
        )
    for name, value in {**asked, "--threads": request.threads}.items():
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: at least 1 is needed", hint="leave it out to have it chosen")
    if request.ccl_worker_count is not None and request.ccl_worker_count < 1:
        raise PlanError(
            f"--ccl-worker-count {request.ccl_worker_count}: at least 1 is needed",
            hint="leave it out to have one",
        )
    if request.reserve_cores is not None and request.reserve_cores < 0:
        raise PlanError(
            f"--reserve-cores {request.reserve_cores}: cannot be negative", hint="0 leaves none to the system"
        )


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
    if request.ranks_per_socket or request.ranks_per_node:
        raise PlanError(
            f"{machine.hostname}: a CPU quota of {quota:g} does not say which sockets are ours",
            hint="use --ranks N instead of ranks per socket or node",
        )
    reasons.append(
        f"the cgroup's CPU quota of {quota:g} wins over the host's cores; ranks are not bound, "
        "because a quota does not say which cores are ours"
    )
    budget, (wanted, because) = max(1, math.floor(quota)), _wanted_reserve(request)
    reserve, ranks = wanted or 0, request.ranks or 1
    if reserve:
        reasons.append(f"{_count(reserve, 'CPU')} of the quota left to the system, {because}")
    free = budget - reserve
    if free < 1:
        raise PlanError(
            f"{machine.hostname}: --reserve-cores {reserve} leaves nothing of a CPU quota of {quota:g}",
            hint="reserve fewer cores",
        )
    if ranks > free and not request.oversubscribe:
        raise PlanError(
            f"{machine.hostname}: {_no_fit(ranks)} a CPU quota of {quota:g}"
            + (f" after reserving {reserve}" if reserve else ""),
            hint=f"{_what_fits(free)}; or raise the container's CPU limit",
        )
    if request.ranks:
        reasons.append(f"{_count(ranks, 'rank')}, as asked")
    if ranks > free:
        warnings.append(
            f"{ranks} ranks on a CPU quota of {quota:g}: they take turns, and each step waits for the slowest"
        )
    threads = _threads(machine, request, max(1, free // ranks), reasons, warnings)
    share = Share(
        threads=threads,
        cpus=(),
        nodes=tuple(sorted(node.id for node in machine.nodes)),
        sockets=tuple(range(len(machine.sockets))),
    )
    return HostShares(shares=(share,) * ranks, reasons=tuple(reasons), warnings=tuple(warnings))


def _group(
    machine: Machine, request: PlanRequest, *, without: Collection[int] = frozenset()
) -> tuple[list[list[int]], list[str]]:
    """Cores of each rank in rank order, and why; a rank without a core is one that does not fit."""
    if request.ranks_per_socket is not None:
        return _per_domain(machine, request, "socket", request.ranks_per_socket, without)
    if request.ranks_per_node is not None:
        return _per_domain(machine, request, "node", request.ranks_per_node, without)
    domains = domains_of(machine, without=without)
    if request.ranks is None:
        return _natural_groups(machine, domains)
    ranks, reasons = request.ranks, [f"{_count(request.ranks, 'rank')}, as asked"]
    across = _split([cpu for domain in domains for cpu in domain.cpus], ranks, request)
    if ranks % len(domains) == 0:
        within = [part for domain in domains for part in _split(domain.cpus, ranks // len(domains), request)]
    elif len(domains) % ranks == 0:
        width = len(domains) // ranks
        within = [
            [cpu for domain in domains[i * width : (i + 1) * width] for cpu in domain.cpus]
            for i in range(ranks)
        ]
    else:
        reasons.append(
            f"{ranks} ranks do not go evenly into {len(domains)} {domains[0].kind}s: some span two"
        )
        return across, reasons
    if 2 * min(map(len, within)) < min(map(len, across)):
        reasons.append(
            f"the {domains[0].kind}s have too unequal shares of allowed cores: some ranks span two"
        )
        return across, reasons
    return within, reasons


def _per_domain(
    machine: Machine, request: PlanRequest, kind: str, each: int, without: Collection[int]
) -> tuple[list[list[int]], list[str]]:
    domains = domains_of(machine, kind, without=without)
    groups = []
    for domain in domains:
        parts = _split(domain.cpus, each, request)
        if not all(parts):
            number = domain.socket if kind == "socket" else domain.nodes[0]
            raise PlanError(
                f"{machine.hostname}: {_no_fit(each)} the {_count(len(domain.cpus), 'core')} "
                f"left in {domain.kind} {number}",
                hint=_what_fits(len(domain.cpus)) if domain.cpus else "reserve fewer cores, or use --ranks N",
            )
        groups += parts
    return groups, [f"{_count(each, 'rank')} per {domains[0].kind}, as asked"]


def _natural_groups(machine: Machine, domains: tuple[Domain, ...]) -> tuple[list[list[int]], list[str]]:
    # d domains give d times the smallest of them; leave out domains that would hold the rest back.
    by_size = sorted(domains, key=lambda domain: -len(domain.cpus))
    best = max(range(1, len(by_size) + 1), key=lambda d: (d * len(by_size[d - 1].cpus), -d))
    chosen = [list(domain.cpus) for domain in domains if domain in by_size[:best]]
    why = f"a rank per {domains[0].kind}"
    if domains[0].kind == "NUMA node" and has_artificial_sockets(machine):
        why += f", since sockets of fewer than {REAL_SOCKET_CORES} cores are a hypervisor's"
    elif domains[0].kind == "NUMA node":
        why += ", since each socket has several"
    if len(chosen) < len(domains):
        why += f", {len(domains) - len(chosen)} with too few allowed cores left out"
    return chosen, [why]


def _split(cpus: Sequence[int], parts: int, request: PlanRequest) -> list[list[int]]:
    """Contiguous parts whose sizes differ by at most one; cores are shared when oversubscribed."""
    if parts > len(cpus) > 0 and request.oversubscribe:
        return [[cpus[i * len(cpus) // parts]] for i in range(parts)]
    edges = [len(cpus) * i // parts for i in range(parts + 1)]
    return [list(cpus[a:b]) for a, b in itertools.pairwise(edges)]


def _reserve(
    machine: Machine, request: PlanRequest, cpus: dict[int, tuple[int, int]], smallest: int
) -> tuple[frozenset[int], list[str]]:
    """The logical CPUs left to the system, taken in turn from the nodes of each socket, and why."""
    artificial = has_artificial_sockets(machine)
    by_socket: dict[int, dict[int, list[int]]] = {}
    for cpu, (socket, node) in cpus.items():
        by_socket.setdefault(node if artificial else socket, {}).setdefault(node, []).append(cpu)
    rounds = {
        socket: [cpu for turn in itertools.zip_longest(*nodes.values()) for cpu in turn if cpu is not None]
        for socket, nodes in by_socket.items()
    }
    per = "NUMA node" if artificial else "socket"
    wanted, because = _wanted_reserve(request)
    if wanted is not None:
        taken = {cpu for candidates in rounds.values() for cpu in candidates[:wanted]}
        why = f"{_count(wanted, 'core')} per {per} left to the system, {because}"
        return frozenset(taken), [why] if taken else []
    # Whoever asks for a thread on every core has decided.
    if smallest < RESERVE_FROM or (request.threads is not None and request.threads >= smallest):
        return frozenset(), []
    ordinal = {socket: number for number, socket in enumerate(machine.sockets)}
    whole = Counter(core.node if artificial else ordinal[core.socket] for core in machine.cores)
    taken = {candidates[0] for s, candidates in rounds.items() if len(candidates) == whole[s]}
    why = f"one core per {per} is left to the system and to communication"
    return frozenset(taken), [why] if taken else []


def _wanted_reserve(request: PlanRequest) -> tuple[int | None, str]:
    """The cores per socket to leave to the system, and why; None: as many as the share of a rank suggests."""
    if request.reserve_cores is None and request.tuned is not None:
        return request.tuned.reserve_cores, request.tuned.why
    return request.reserve_cores, "as asked"


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
    if request.threads != share:
        warnings.append(
            f"--threads {request.threads} on {_count(share, 'core')} per rank: "
            + (
                f"{share - request.threads} idle"
                if request.threads < share
                else "threads take turns on a core"
            )
        )
    return request.threads


def _helpers(
    groups: list[list[int]], smallest: int, cpus: dict[int, tuple[int, int]], reserved: Collection[int]
) -> list[tuple[int, ...]]:
    """Where communication threads go: a core left over, else the socket's reserved ones, else its last."""
    helpers = []
    seen: Counter[int] = Counter()
    for group in groups:
        socket = cpus[group[0]][0]
        shared = sorted(cpu for cpu in reserved if cpus[cpu][0] == socket)
        # Ranks of one socket begin at different ones of its reserved cores.
        turn = seen[socket] % len(shared) if shared else 0
        seen[socket] += 1
        helpers.append((*group[smallest:], *shared[turn:], *shared[:turn]) or (group[smallest - 1],))
    return helpers


def _no_fit(ranks: int) -> str:
    return f"{_count(ranks, 'rank')} {'does' if ranks == 1 else 'do'} not fit into"


def _what_fits(free: int) -> str:
    return f"ask for at most {_count(free, 'rank')}, or --oversubscribe to share cores (slow; for tests)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
