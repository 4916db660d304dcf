"""Which cores of a machine belong together: sockets, or NUMA nodes. Pure; knows nothing of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from plough.topology.machine import Machine

__all__ = ["REAL_SOCKET_CORES", "Domain", "domains_of", "has_artificial_sockets", "usable_cpus"]

REAL_SOCKET_CORES = 4
"""Sockets smaller than this inside one NUMA node are how a hypervisor shows vCPUs, not sockets."""


class Domain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cores that share memory: a socket or a NUMA node.

    socket: its ordinal among the machine's sockets, from 0. cpus: the first sibling of each usable core.
    """

    kind: str  # "socket" or "NUMA node"
    socket: int
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]


def usable_cpus(machine: Machine) -> dict[int, tuple[int, int]]:
    """The first allowed logical CPU of every usable core, mapped to (socket ordinal, node), in core order."""
    allowed = set(machine.limits.cpus)
    # Firmware numbers packages as it likes (an Arm server's only socket may be 36); people count from 0.
    ordinal = {socket: number for number, socket in enumerate(machine.sockets)}
    first = ((core, next((cpu for cpu in core.cpus if cpu in allowed), None)) for core in machine.cores)
    return {cpu: (ordinal[core.socket], core.node) for core, cpu in first if cpu is not None}


def domains_of(
    machine: Machine, kind: str = "auto", *, without: Collection[int] = frozenset()
) -> tuple[Domain, ...]:
    """Split the usable cores into "socket" or "node" domains; "auto" chooses as the module says.

    Logical CPUs in `without` are left out; a domain that loses all of its cores stays, empty.
    """
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
            cpus=tuple(cpu for cpu in members if cpu not in without),
        )
        for _, members in sorted(groups.items())
    )


def _natural_kind(machine: Machine, cpus: dict[int, tuple[int, int]]) -> str:
    places = set(cpus.values())
    if len({node for _, node in places}) > len({socket for socket, _ in places}):
        return "node"  # sub-NUMA clustering: several nodes in a socket
    return "node" if has_artificial_sockets(machine) else "socket"


def has_artificial_sockets(machine: Machine) -> bool:
    """Whether its sockets are only a hypervisor's way of showing vCPUs."""
    per_socket = Counter(core.socket for core in machine.cores)
    return len(per_socket) > 1 and max(per_socket.values()) < REAL_SOCKET_CORES
