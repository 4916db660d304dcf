"""Which cores each rank gets, on the machines of tests/machines."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from plough.errors import PlanError
from plough.plan.binding import HostShares, share_host
from plough.plan.domains import usable_cpus
from plough.plan.plan import PlanRequest
from plough.topology.machine import Core, Limits, Machine, Node
from tests.machines.trees import NAMES, described


def share(name: str, **request: Any) -> HostShares:
    return share_host(described(name), PlanRequest(**request))


def cpus(name: str, **request: Any) -> list[list[int]]:
    return [list(one.cpus) for one in share(name, **request).shares]


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


# machine: threads per rank, then each rank's (sockets, NUMA nodes, cpus)
DEFAULTS: dict[str, tuple[int, list[tuple[tuple[int, ...], tuple[int, ...], list[int]]]]] = {
    "vm-2-core": (2, [((0,), (0,), [0, 1])]),
    "arm-1x80": (79, [((0,), (0,), span(1, 79))]),
    "graviton3-64": (63, [((0,), (0,), span(1, 63))]),
    "xeon-2x24": (23, [((0,), (0,), span(1, 23)), ((1,), (1,), span(25, 47))]),
    "xeon-2x32-cxl": (31, [((0,), (0,), span(1, 31)), ((1,), (1,), span(33, 63))]),
    "xeon-8x28": (27, [((s,), (s,), span(28 * s + 1, 28 * s + 27)) for s in range(8)]),
    # Node 0 and node 4 lose their first core to the system; the others use as many as those have.
    "xeon-2x56-snc4": (
        13,
        [((n // 4,), (n,), span(14 * n + (n % 4 == 0), 14 * n + 12 + (n % 4 == 0))) for n in range(8)],
    ),
    "xeon-2x8-no-numa": (7, [((0,), (0,), span(1, 7)), ((1,), (0,), span(9, 15))]),
    # 16 "sockets" of one core in one node are vCPUs: one rank, not sixteen.
    "vm-16-sockets": (15, [(tuple(range(1, 16)), (0,), span(1, 15))]),
    "pod-8-of-384-cpuset": (8, [((1,), (1,), span(200, 207))]),
    "pod-8-of-384-cpuset-smt": (4, [((0,), (0,), span(8, 11))]),
    "pod-8-of-384-quota": (8, [((0, 1), (0, 1), [])]),
    # CPU 5 is offline, so its core (CPU 37) comes last and is left over; core 20 is gone whole.
    "xeon-2x16-offline": (
        14,
        [((0,), (0,), [*span(1, 4), *span(6, 15)]), ((1,), (1,), [*span(17, 19), *span(21, 31)])],
    ),
}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_default(name: str) -> None:
    threads, ranks = DEFAULTS[name]
    found = share(name)
    assert [one.threads for one in found.shares] == [threads] * len(ranks)
    assert [(one.sockets, one.nodes, list(one.cpus)) for one in found.shares] == ranks
    assert found.warnings == ()


def test_every_machine_has_a_default() -> None:
    assert set(DEFAULTS) == set(NAMES)


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_siblings_are_never_counted(name: str) -> None:
    machine = described(name)
    core_of = {cpu: index for index, core in enumerate(machine.cores) for cpu in core.cpus}
    used = [core_of[cpu] for one in share(name).shares for cpu in one.cpus]
    assert len(used) == len(set(used))


# request -> expected cpus of each rank
REQUESTS: list[tuple[str, dict[str, Any], list[list[int]]]] = [
    ("xeon-2x24", {"ranks": 1}, [[*span(1, 23), *span(25, 47)]]),
    ("xeon-2x24", {"ranks": 2}, [span(1, 23), span(25, 47)]),
    ("xeon-2x24", {"ranks": 4}, [span(1, 11), span(12, 22), span(25, 35), span(36, 46)]),
    ("xeon-2x24", {"ranks_per_socket": 2}, [span(1, 11), span(12, 22), span(25, 35), span(36, 46)]),
    # Ranks of 6 cores are too small to give one up.
    (
        "xeon-2x24",
        {"ranks_per_socket": 4},
        [*(span(6 * i, 6 * i + 5) for i in range(8))],
    ),
    ("xeon-2x24", {"reserve_cores": 0}, [span(0, 23), span(24, 47)]),
    ("xeon-2x24", {"reserve_cores": 4}, [span(4, 23), span(28, 47)]),
    ("xeon-2x24", {"reserve_cores": 4, "ranks_per_socket": 4}, [
        *(span(first, first + 4) for first in (4, 9, 14, 19, 28, 33, 38, 43))
    ]),
    # All 24 threads were asked for: none is held back.
    ("xeon-2x24", {"threads": 24}, [span(0, 23), span(24, 47)]),
    ("xeon-2x24", {"threads": 8}, [span(1, 23), span(25, 47)]),
    ("xeon-2x24", {"ranks": 3}, [span(1, 15), [*span(16, 23), *span(25, 31)], span(32, 46)]),
    ("xeon-8x28", {"ranks": 2}, [
        [cpu for s in range(4) for cpu in span(28 * s + 1, 28 * s + 27)],
        [cpu for s in range(4, 8) for cpu in span(28 * s + 1, 28 * s + 27)],
    ]),
    ("xeon-2x56-snc4", {"ranks_per_socket": 1}, [span(1, 55), span(57, 111)]),
    ("xeon-2x56-snc4", {"ranks": 2}, [span(1, 55), span(57, 111)]),
    # Four reserved cores of a socket come from its four nodes, so that no node is short of four.
    ("xeon-2x56-snc4", {"reserve_cores": 4}, [span(14 * n + 1, 14 * n + 13) for n in range(8)]),
    ("xeon-2x8-no-numa", {"ranks_per_node": 1}, [[*span(1, 7), *span(9, 15)]]),
    ("xeon-2x32-cxl", {"ranks_per_node": 1}, [span(1, 31), span(33, 63)]),
    ("vm-2-core", {"ranks": 2}, [[0], [1]]),
    ("vm-2-core", {"ranks": 4, "oversubscribe": True}, [[0], [0], [1], [1]]),
    ("vm-2-core", {"ranks": 3, "oversubscribe": True}, [[0], [0], [1]]),
    ("vm-2-core", {"ranks": 4, "oversubscribe": True, "reserve_cores": 1}, [[1]] * 4),
    ("vm-16-sockets", {"ranks": 4}, [span(0, 3), span(4, 7), span(8, 11), span(12, 15)]),
    ("vm-16-sockets", {"ranks_per_socket": 1}, [[cpu] for cpu in range(16)]),
    ("vm-16-sockets", {"reserve_cores": 2}, [span(2, 15)]),
    ("pod-8-of-384-cpuset", {"ranks": 2}, [span(200, 203), span(204, 207)]),
    ("pod-8-of-384-quota", {"ranks": 2}, [[], []]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "request_", "expected"), REQUESTS)
def test_requests(name: str, request_: dict[str, Any], expected: list[list[int]]) -> None:
    assert cpus(name, **request_) == expected


@pytest.mark.parametrize(
    ("request_", "threads"),
    [
        ({}, 8),
        ({"ranks": 2}, 4),
        ({"ranks": 3}, 2),
        ({"reserve_cores": 2}, 6),
        ({"ranks": 2, "threads": 3}, 3),
        ({"ranks": 16, "oversubscribe": True}, 1),
    ],
)
def test_quota(request_: dict[str, Any], threads: int) -> None:
    found = share("pod-8-of-384-quota", **request_)
    assert {one.threads for one in found.shares} == {threads}
    assert {one.cpus for one in found.shares} == {()}
    assert "quota of 8 wins" in found.reasons[1]


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1.0, 1), (2.7, 2), (6.0, 6)])
def test_a_quota_is_rounded_down_but_never_to_nothing(quota: float, threads: int) -> None:
    machine = described("pod-8-of-384-cpuset")
    limits = replace(machine.limits, quota_cpus=quota)
    found = share_host(replace(machine, limits=limits), PlanRequest())
    assert [(one.threads, one.cpus) for one in found.shares] == [(threads, ())]


def test_a_quota_of_all_allowed_cores_binds() -> None:
    assert described("pod-8-of-384-cpuset-smt").limits.quota_cpus == 8
    assert cpus("pod-8-of-384-cpuset-smt") == [[8, 9, 10, 11]]


# Where communication threads go, best first.
@pytest.mark.parametrize(
    ("name", "request_", "helpers"),
    [
        ("xeon-2x24", {}, [(0,), (24,)]),
        ("xeon-2x24", {"reserve_cores": 2}, [(0, 1), (24, 25)]),
        # Ranks of a socket take turns on its reserved cores.
        ("xeon-2x24", {"reserve_cores": 2, "ranks": 4}, [(0, 1), (1, 0), (24, 25), (25, 24)]),
        # A core left over for the sake of equal ranks is better than one shared by four.
        ("xeon-2x56-snc4", {}, [(0,), (27, 0), (41, 0), (55, 0), (56,), (83, 56), (97, 56), (111, 56)]),
        ("vm-2-core", {"ranks": 2}, [(0,), (1,)]),
        ("vm-2-core", {}, [(1,)]),
        ("pod-8-of-384-quota", {"ranks": 2}, [(), ()]),
    ],
)
def test_helpers(name: str, request_: dict[str, Any], helpers: list[tuple[int, ...]]) -> None:
    assert [one.helper_cpus for one in share(name, **request_).shares] == helpers


UNFIT: list[tuple[str, dict[str, Any], str, str]] = [
    ("xeon-2x24", {"ranks": 2, "ranks_per_socket": 1}, "--ranks and --ranks-per-socket contradict", "one of"),
    (
        "xeon-2x24",
        {"ranks": 2, "ranks_per_socket": 1, "ranks_per_node": 1},
        "--ranks, --ranks-per-socket and --ranks-per-node contradict each other",
        "give one of them",
    ),
    ("xeon-2x24", {"ranks": 0}, "--ranks 0: at least 1 is needed", "leave it out"),
    ("xeon-2x24", {"ranks_per_node": -1}, "--ranks-per-node -1: at least 1 is needed", "leave it out"),
    ("xeon-2x24", {"threads": 0}, "--threads 0: at least 1 is needed", "leave it out"),
    ("xeon-2x24", {"reserve_cores": -1}, "--reserve-cores -1: cannot be negative", "0 leaves none"),
    ("xeon-2x24", {"ccl_worker_count": 0}, "--ccl-worker-count 0: at least 1 is needed", "leave it out"),
    ("xeon-2x24", {"ranks": 49}, "49 ranks do not fit into 48 cores", "at most 48 ranks, or --oversubscribe"),
    (
        "xeon-2x24",
        {"ranks_per_socket": 25},
        "do not fit into the 24 cores left in socket 0",
        "at most 24 ranks",
    ),
    (
        "xeon-2x56-snc4",
        {"ranks_per_node": 15},
        "15 ranks do not fit into the 14 cores left in NUMA node 0",
        "14",
    ),
    ("xeon-2x24", {"threads": 25}, "--threads 25 is more than the 24 cores of a rank's share", "at most 24"),
    (
        "xeon-2x24",
        {"threads": 13, "ranks": 4},
        "--threads 13 is more than the 12 cores of a rank's share",
        "at most 12",
    ),
    ("xeon-2x24", {"reserve_cores": 24}, "--reserve-cores 24 leaves no core", "reserve fewer cores"),
    (
        "vm-2-core",
        {"reserve_cores": 1, "ranks": 2},
        "2 ranks do not fit into 1 core after reserving 1",
        "1 rank,",
    ),
    ("pod-8-of-384-quota", {"ranks": 9}, "9 ranks do not fit into a CPU quota of 8", "raise the container's"),
    (
        "pod-8-of-384-quota",
        {"threads": 9},
        "--threads 9 is more than the 8 cores of a rank's share",
        "at most 8",
    ),
    ("pod-8-of-384-quota", {"ranks_per_socket": 1}, "does not say which sockets are ours", "use --ranks N"),
    ("pod-8-of-384-quota", {"reserve_cores": 8}, "leaves nothing of a CPU quota of 8", "reserve fewer"),
    (
        "pod-8-of-384-quota",
        {"reserve_cores": 4, "ranks": 5},
        "CPU quota of 8 after reserving 4",
        "at most 4 ranks",
    ),
    (
        "xeon-2x24",
        {"reserve_cores": 24, "oversubscribe": True, "ranks": 2},
        "--reserve-cores 24 leaves no core to the ranks",
        "reserve fewer cores",
    ),
]


@pytest.mark.parametrize(("name", "request_", "cause", "hint"), UNFIT)
def test_what_does_not_fit(name: str, request_: dict[str, Any], cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        share(name, **request_)
    assert cause in caught.value.cause
    assert hint in str(caught.value.hint)


def test_no_allowed_core() -> None:
    machine = described("vm-2-core")
    gone = replace(machine, limits=replace(machine.limits, cpus=()))
    with pytest.raises(PlanError, match="no online core is in the allowed set"):
        share_host(gone, PlanRequest())


@pytest.mark.parametrize(
    ("name", "request_", "warning"),
    [
        ("vm-2-core", {"ranks": 4, "oversubscribe": True}, "4 ranks on 2 cores: ranks take turns on a core"),
        (
            "vm-2-core",
            {"threads": 8, "oversubscribe": True},
            "--threads 8 on 2 cores per rank: threads take turns",
        ),
        ("xeon-2x24", {"threads": 8}, "--threads 8 on 23 cores per rank: 15 idle"),
        ("pod-8-of-384-quota", {"ranks": 16, "oversubscribe": True}, "16 ranks on a CPU quota of 8"),
    ],
)
def test_warnings(name: str, request_: dict[str, Any], warning: str) -> None:
    found = share(name, **request_).warnings
    assert len(found) == 1
    assert found[0].startswith(warning)


def machine_of(sockets: dict[int, dict[int, int]], allowed: list[int] | None = None) -> Machine:
    """{socket: {node: cores}} with CPUs numbered in order and no siblings."""
    cores, cpu = [], 0
    for socket, nodes in sockets.items():
        for node, size in nodes.items():
            cores += [Core(socket=socket, node=node, cpus=(cpu + i,)) for i in range(size)]
            cpu += size
    mine = tuple(range(cpu)) if allowed is None else tuple(allowed)
    nodes_ = sorted({core.node for core in cores})
    return Machine(
        hostname="built",
        architecture="x86_64",
        model_name="built",
        cores=tuple(cores),
        nodes=tuple(Node(id=node) for node in nodes_),
        limits=Limits(cpus=mine, cpuset=mine, nodes=tuple(nodes_)),
        memory_bytes=1 << 30,
    )


def test_socket_ids_become_ordinals() -> None:
    machine = machine_of({36: {0: 4}, 40: {1: 4}})
    assert set(usable_cpus(machine).values()) == {(0, 0), (1, 1)}
    assert [one.sockets for one in share_host(machine, PlanRequest()).shares] == [(0,), (1,)]
    with pytest.raises(PlanError, match="in socket 0"):
        share_host(machine, PlanRequest(ranks_per_socket=5))


def test_a_socket_with_hardly_any_allowed_core_is_left_out() -> None:
    machine = machine_of({0: {0: 24}, 1: {1: 24}}, allowed=[*range(24), 24])
    found = share_host(machine, PlanRequest())
    assert [one.cpus for one in found.shares] == [tuple(range(1, 24))]
    assert "a rank per socket, 1 with too few allowed cores left out" in found.reasons


def test_two_unequal_sockets_are_used_when_that_gives_more() -> None:
    machine = machine_of({0: {0: 24}, 1: {1: 24}}, allowed=[*range(24), *range(24, 38)])
    assert [len(one.cpus) for one in share_host(machine, PlanRequest()).shares] == [14, 14]


def test_asked_ranks_span_sockets_rather_than_starve() -> None:
    machine = machine_of({0: {0: 24}, 1: {1: 24}}, allowed=[*range(24), 24, 25])
    found = share_host(machine, PlanRequest(ranks=2, reserve_cores=0))
    assert [len(one.cpus) for one in found.shares] == [13, 13]
    assert any("too unequal" in reason for reason in found.reasons)


def test_only_a_whole_socket_gives_a_core_to_the_system() -> None:
    machine = machine_of({0: {0: 24}, 1: {1: 24}}, allowed=list(range(1, 24)))
    assert [one.cpus for one in share_host(machine, PlanRequest()).shares] == [tuple(range(1, 24))]


def test_small_sockets_in_two_nodes_are_a_rank_per_node() -> None:
    machine = machine_of({s: {s // 8: 1} for s in range(16)})
    found = share_host(machine, PlanRequest())
    assert [(one.nodes, one.cpus) for one in found.shares] == [
        ((0,), tuple(range(1, 8))),
        ((1,), tuple(range(9, 16))),
    ]
