"""Which ranks share a host: found out by what they can reach, never by what their host is called.

Two ranks may share memory when the same kernel runs them, in the same namespaces, for the same user; that
makes them candidates, and opening the memory proves it. Grouping is pure. Knows no torch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

__all__ = ["Place", "RankFacts", "candidates", "leaders", "own_facts", "places"]

NAMESPACES = ("pid", "net", "ipc", "user")


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells the others of itself. key: ranks with the same key may reach each other's memory."""

    key: str
    host: str
    pid: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """host: number of the host; index: of the rank among those of the host. Index 0 leads."""

    host: int
    index: int


def own_facts(locality: str | None, *, root: Path = Path("/")) -> RankFacts:
    """`locality` keeps ranks apart that could share memory, and never brings together others."""
    boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    parts = [boot, str(os.getuid()), *(_namespace(root, name) for name in NAMESPACES)]
    if locality is not None:
        parts.append(locality)
    return RankFacts(
        key="/".join(parts),
        host=socket.gethostname(),
        pid=os.getpid(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
    )


def candidates(facts: Sequence[RankFacts]) -> list[list[int]]:
    """Ranks that may share memory, host by host, in the order of their first ranks."""
    hosts: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        hosts.setdefault(fact.key, []).append(rank)
    return list(hosts.values())


def places(hosts: Sequence[Sequence[int]], attached: Mapping[int, bool]) -> list[Place]:
    """Where each rank is. A rank that could not open its leader's memory is a host of its own, at the end."""
    apart = [rank for host in hosts for rank in host[1:] if not attached[rank]]
    together = [[rank for rank in host if rank not in apart] for host in hosts]
    found = {
        rank: Place(number, index)
        for number, host in enumerate([*together, *([rank] for rank in sorted(apart))])
        for index, rank in enumerate(host)
    }
    return [found[rank] for rank in range(len(found))]


def leaders(where: Sequence[Place]) -> list[int]:
    """The leading rank of each host."""
    first = {place.host: rank for rank, place in enumerate(where) if place.index == 0}
    return [first[host] for host in sorted(first)]


def _namespace(root: Path, name: str) -> str:
    try:
        return os.readlink(root / "proc/self/ns" / name)
    except OSError:
        return f"{name}:?"  # a kernel without this namespace has one for all
