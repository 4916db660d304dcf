"""Every machine in tests/machines, probed, against its committed description, and what must be true of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from plough.topology import Machine, probe
from tests.machines.trees import CAPTURED, NAMES, expected_file, unpacked


@cache
def machine(name: str) -> Machine:
    with unpacked(name) as root:
        return probe(root)


@pytest.mark.parametrize("name", NAMES)
def test_probe_gives_the_committed_description(name: str) -> None:
    assert machine(name).to_json() + "\n" == expected_file(name).read_text(), (
        "if the difference is meant, `python -m tests.machines` writes the files anew"
    )


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_read_back(name: str) -> None:
    assert Machine.load(expected_file(name)) == machine(name)


def test_every_description_has_its_machine() -> None:
    described = {path.name.removesuffix(".json") for path in expected_file("x").parent.glob("*.json")}
    assert described - {f"{name}.tree" for name in CAPTURED} == set(NAMES)


# name: sockets, cores per socket, threads per core, nodes with cores
SHAPES = {
    "arm-1x80": (1, 80, 1, 1),
    "graviton3-64": (1, 64, 1, 1),
    "pod-8-of-384-cpuset": (2, 192, 2, 2),
    "pod-8-of-384-cpuset-smt": (2, 192, 2, 2),
    "pod-8-of-384-quota": (2, 192, 2, 2),
    "vm-16-sockets": (16, 1, 1, 1),
    "vm-2-core": (1, 2, 1, 1),
    "xeon-2x24": (2, 24, 2, 2),
    "xeon-2x32-cxl": (2, 32, 2, 2),
    "xeon-2x56-snc4": (2, 56, 2, 8),
    "xeon-2x8-no-numa": (2, 8, 2, 1),
    "xeon-8x28": (8, 28, 2, 8),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shape(name: str) -> None:
    sockets, cores, threads, nodes = SHAPES[name]
    it = machine(name)
    assert len(it.sockets) == sockets
    assert [sum(core.socket == socket for core in it.cores) for socket in it.sockets] == [cores] * sockets
    assert {len(core.cpus) for core in it.cores} == {threads}
    assert len({core.node for core in it.cores}) == nodes


def test_siblings_are_numbered_after_all_cores() -> None:
    assert machine("xeon-2x24").cores[24].cpus == (24, 72)


def test_sub_numa_clusters() -> None:
    it = machine("xeon-2x56-snc4")
    assert [core.cpus[0] for core in it.cores if core.node == 5] == list(range(70, 84))
    assert {core.socket for core in it.cores if core.node == 5} == {1}
    assert [cache.instances for cache in it.caches if cache.level == 3] == [2]


def test_offline_cpus_appear_nowhere() -> None:
    it = machine("xeon-2x16-offline")
    first_cpus = {core.cpus[0]: core.cpus for core in it.cores}
    assert len(it.cores) == 31
    assert first_cpus[3] == (3,)
    assert first_cpus[37] == (37,)
    assert 20 not in first_cpus
    assert len(it.limits.cpus) == 60
    assert [(one.level, one.instances, one.cpus_per_instance) for one in it.caches][-2:] == [
        (2, 31, 2),
        (3, 2, 30),
    ]


def test_pod_limits() -> None:
    quota = machine("pod-8-of-384-quota").limits
    assert (quota.quota_cpus, quota.memory_bytes, len(quota.cpus), len(quota.cpuset)) == (
        8.0,
        32 * 2**30,
        768,
        768,
    )
    cpuset = machine("pod-8-of-384-cpuset").limits
    assert (cpuset.quota_cpus, cpuset.cpus, cpuset.nodes) == (None, tuple(range(200, 208)), (1,))
    smt = machine("pod-8-of-384-cpuset-smt")
    cores = [core.cpus for core in smt.cores if set(core.cpus) <= set(smt.limits.cpus)]
    assert cores == [(8, 392), (9, 393), (10, 394), (11, 395)]
    assert {machine(name).container for name in NAMES if name.startswith("pod")} == {"kubernetes"}


def test_memory_without_cores() -> None:
    it = machine("xeon-2x32-cxl")
    assert [node.id for node in it.nodes] == [0, 1, 2]
    assert it.limits.nodes == (0, 1, 2)
    assert 2 not in {core.node for core in it.cores}


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("arm-1x80", lambda it: it.sockets == (36,) and it.isa == ("neon",) and it.architecture == "aarch64"),
        (
            "graviton3-64",
            lambda it: it.isa == ("arm_bf16", "arm_i8mm", "neon", "sve") and it.hypervisor == "kvm",
        ),
        ("xeon-2x24", lambda it: it.isa == ("avx2", "avx512") and it.hypervisor is None),
        ("xeon-2x56-snc4", lambda it: "amx_bf16" in it.isa),
        ("xeon-2x8-no-numa", lambda it: it.isa == ("avx2",) and it.nodes[0].memory_bytes == 64 * 2**30),
        ("pod-8-of-384-quota", lambda it: it.isa == ("avx2", "avx512", "avx512_bf16")),
    ],
)
def test_particulars(name: str, has: Callable[[Machine], bool]) -> None:
    assert has(machine(name))
