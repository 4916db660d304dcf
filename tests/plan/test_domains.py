"""Which cores belong together, on captured machines."""

from __future__ import annotations

import pytest

from plough.plan.domains import domains_of
from tests.machines.trees import described


@pytest.mark.parametrize(
    ("name", "kind", "domains"),
    [
        ("xeon-2x24", "auto", [("socket", 0, (0,), 24), ("socket", 1, (1,), 24)]),
        ("xeon-2x24", "node", [("NUMA node", 0, (0,), 24), ("NUMA node", 1, (1,), 24)]),
        ("xeon-2x56-snc4", "socket", [("socket", s, tuple(range(4 * s, 4 * s + 4)), 56) for s in (0, 1)]),
        ("xeon-2x56-snc4", "auto", [("NUMA node", n // 4, (n,), 14) for n in range(8)]),
        ("vm-16-sockets", "auto", [("NUMA node", 0, (0,), 16)]),
    ],
)
def test_domains(name: str, kind: str, domains: list[tuple[str, int, tuple[int, ...], int]]) -> None:
    found = domains_of(described(name), kind)
    assert [(one.kind, one.socket, one.nodes, len(one.cpus)) for one in found] == domains
