"""make_plan as a whole: on the captured machines, on generated ones, and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from plough.contract import MemoryPolicy, WorkerIdentity
from plough.errors import PlanError
from plough.plan import LaunchPlan, PlanRequest, make_plan
from plough.topology.machine import Core, Limits, Machine, Node, Software
from tests.machines.trees import NAMES, described


def bind(*nodes: int) -> MemoryPolicy:
    return MemoryPolicy(mode="bind", nodes=nodes)


FIRST_TOUCH = MemoryPolicy(mode="first-touch")

# machine, request -> each rank's memory, and the words that explain it
MEMORY: list[tuple[str, dict[str, Any], list[MemoryPolicy], str]] = [
    ("xeon-2x24", {}, [bind(0), bind(1)], "own NUMA nodes"),
    ("xeon-2x24", {"ranks": 1}, [bind(0, 1)], "own NUMA nodes"),
    ("xeon-2x24", {"memory": "first-touch"}, [FIRST_TOUCH] * 2, "first touches it, as asked"),
    ("xeon-2x56-snc4", {"ranks_per_socket": 1}, [bind(0, 1, 2, 3), bind(4, 5, 6, 7)], "own NUMA nodes"),
    # Node 2 is memory without cores: nobody's own.
    ("xeon-2x32-cxl", {}, [bind(0), bind(1)], "own NUMA nodes"),
    ("xeon-2x8-no-numa", {}, [FIRST_TOUCH] * 2, "one NUMA node, so memory needs no binding"),
    ("pod-8-of-384-cpuset", {}, [bind(1)], "own NUMA nodes"),
    ("pod-8-of-384-quota", {}, [FIRST_TOUCH], "not bound either"),
]


@pytest.mark.parametrize(("name", "request_", "memory", "words"), MEMORY)
def test_memory(name: str, request_: dict[str, Any], memory: list[MemoryPolicy], words: str) -> None:
    plan = make_plan([described(name)], PlanRequest(**request_))
    assert [rank.memory for rank in plan.ranks] == memory
    assert sum(words in reason for reason in plan.reasons) == 1


def test_cores_of_a_node_whose_memory_is_barred() -> None:
    machine = described("xeon-2x24")
    barred = replace(machine, limits=replace(machine.limits, nodes=(1,)))
    plan = make_plan([barred])
    assert [rank.memory for rank in plan.ranks] == [FIRST_TOUCH, bind(1)]
    assert len(plan.warnings) == 1
    assert plan.warnings[0].startswith("NUMA node 0 gives this process cores but no memory")


def test_ranks_are_numbered_through_hosts() -> None:
    first, second = described("xeon-2x24"), replace(described("xeon-8x28"), hostname="big")
    plan = make_plan([first, second])
    assert [(r.rank, r.host, r.local_rank, r.local_world_size) for r in plan.ranks] == [
        (0, "captured", 0, 2),
        (1, "captured", 1, 2),
        *((2 + i, "big", i, 8) for i in range(8)),
    ]
    assert plan.hosts == ("captured", "big")
    assert plan.reasons[0].startswith("captured: 2 sockets")
    assert any(reason.startswith("big: 8 sockets") for reason in plan.reasons)
    assert all("MASTER_ADDR" not in rank.environment for rank in plan.ranks)


def test_a_warning_that_holds_for_all_ranks_is_given_once() -> None:
    plan = make_plan([described("xeon-8x28")], PlanRequest(user_environment={"OMP_NUM_THREADS": "1"}))
    assert len(plan.warnings) == 1


@pytest.mark.parametrize(
    ("machines", "request_", "cause"),
    [
        ([], {}, "a plan needs at least one machine"),
        (["vm-2-core"], {"memory": "interleave"}, "--memory interleave: unknown"),
    ],
)
def test_refused(machines: list[str], request_: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan([described(name) for name in machines], PlanRequest(**request_))
    assert caught.value.cause == cause
    assert caught.value.hint


def identity(rank: int, world: int) -> WorkerIdentity:
    return WorkerIdentity(
        rank=rank, world_size=world, local_rank=rank, local_world_size=world, launcher="torchrun"
    )


def test_the_contract_of_a_rank() -> None:
    plan = make_plan([described("xeon-2x24")])
    contract = plan.contract(identity(1, 2))
    assert (contract.threads, contract.cpus, contract.memory) == (23, tuple(range(25, 48)), bind(1))
    assert (contract.hosts, contract.problems, contract.backend) == (1, (), "ccl")
    with pytest.raises(PlanError, match="the plan is for 2 ranks, the launcher started 3"):
        plan.contract(identity(1, 3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("{}", "missing required field"),
        ('{"backend": "ccl", "ranks": [], "reasons": [], "warnings": [], "more": 1}', "unknown field `more`"),
        (b"\xff", "not a launch plan"),
    ],
)
def test_garbled_plans(text: str | bytes, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        LaunchPlan.from_json(text, source="some/plan.json")
    assert "some/plan.json" in caught.value.cause


# Generated machines and requests.


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    sockets = draw(st.integers(1, 8))
    nodes_per_socket = draw(st.sampled_from([1, 1, 2, 4]))
    smt = draw(st.integers(1, 2))
    numa = draw(st.booleans())
    ids = draw(st.lists(st.integers(0, 40), min_size=sockets, max_size=sockets, unique=True))
    cores, first = [], 0
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=2))
    total = sum(sizes[i % len(sizes)] for i in range(sockets * nodes_per_socket))
    for place in range(sockets * nodes_per_socket):
        for _ in range(sizes[place % len(sizes)]):
            siblings = tuple(first + total * i for i in range(smt))
            cores.append(
                Core(socket=ids[place // nodes_per_socket], node=place if numa else 0, cpus=siblings)
            )
            first += 1
    logical = sorted(cpu for core in cores for cpu in core.cpus)
    some = st.lists(st.sampled_from(logical), min_size=1, unique=True).map(sorted)
    allowed = tuple(draw(st.one_of(st.just(logical), some)))
    nodes = sorted({core.node for core in cores} | ({99} if draw(st.booleans()) else set()))
    return Machine(
        hostname="generated",
        architecture="x86_64",
        model_name="generated",
        cores=tuple(sorted(cores, key=lambda core: (core.socket, core.node, core.cpus))),
        nodes=tuple(Node(id=node) for node in nodes),
        limits=Limits(
            cpus=allowed,
            cpuset=tuple(logical),
            nodes=tuple(nodes),
            quota_cpus=draw(st.one_of(st.none(), st.none(), st.floats(0.1, 64))),
        ),
        memory_bytes=1 << 34,
        software=Software(
            tcmalloc=draw(st.sampled_from([None, "/lib/libtcmalloc.so.4"])),
            intel_openmp=draw(st.sampled_from([None, "/lib/libiomp5.so"])),
        ),
    )


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    how = draw(st.sampled_from(["", "", "ranks", "ranks_per_socket", "ranks_per_node"]))
    asked: dict[str, Any] = {how: draw(st.integers(1, 12))} if how else {}
    return PlanRequest(
        threads=draw(st.one_of(st.none(), st.integers(1, 16))),
        reserve_cores=draw(st.one_of(st.none(), st.integers(0, 4))),
        oversubscribe=draw(st.booleans()),
        memory=draw(st.sampled_from(["bind", "first-touch"])),
        user_environment=draw(st.sampled_from([{}, {}, {"OMP_PROC_BIND": "spread"}])),
        ccl_worker_count=draw(st.integers(1, 3)),
        **asked,
    )


def planned(machine: Machine, request: PlanRequest) -> LaunchPlan | str:
    """The plan, or the text of its refusal."""
    try:
        return make_plan([machine], request)
    except PlanError as error:
        return str(error)


@settings(max_examples=400, deadline=None)
@given(machine=machines(), request=requests())
def test_what_holds_for_every_plan(machine: Machine, request: PlanRequest) -> None:
    plan = planned(machine, request)
    assert planned(machine, request) == plan
    if isinstance(plan, str):
        assert "\n\nhint: " in plan
        return
    core_of = {cpu: index for index, core in enumerate(machine.cores) for cpu in core.cpus}
    used = [cpu for rank in plan.ranks for cpu in rank.cpus]

    assert set(used) <= set(machine.limits.cpus)
    for rank in plan.ranks:
        assert len({core_of[cpu] for cpu in rank.cpus}) == len(rank.cpus)
        assert set(rank.sockets) <= set(range(len(machine.sockets)))
        assert set(rank.memory.nodes) <= {machine.cores[core_of[cpu]].node for cpu in rank.cpus}
        assert rank.memory.mode == "first-touch" or rank.cpus
        assert rank.environment["OMP_NUM_THREADS"] == str(rank.threads)
    assert len({rank.threads for rank in plan.ranks}) == 1
    assert len({len(rank.cpus) for rank in plan.ranks}) == 1

    if not request.oversubscribe:
        assert max(Counter(core_of[cpu] for cpu in used).values(), default=0) <= 1
        assert all(rank.threads <= len(rank.cpus) for rank in plan.ranks if rank.cpus)
        quota = machine.limits.quota_cpus
        if quota is not None:
            assert sum(rank.threads for rank in plan.ranks) <= max(1, quota)
    if request.ranks is not None:
        assert plan.world_size == request.ranks
    if request.threads is not None:
        assert plan.ranks[0].threads == request.threads

    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert make_plan([Machine.from_json(machine.to_json())], request) == plan


@pytest.mark.parametrize("name", NAMES)
def test_planning_changes_nothing_it_was_given(name: str) -> None:
    machine, request = described(name), PlanRequest(user_environment={"LD_PRELOAD": "/a.so"})
    before = machine.to_json()
    first, second = make_plan([machine], request), make_plan([machine], request)
    assert first == second
    assert (machine.to_json(), request) == (before, PlanRequest(user_environment={"LD_PRELOAD": "/a.so"}))
    assert LaunchPlan.from_json(first.to_json()) == first
