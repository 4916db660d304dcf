"""Cores, nodes and caches from trees with pieces missing or wrong."""

from __future__ import annotations

import pytest

from plough.topology._sysfs import Tree
from plough.topology.cores import memory_total, online_cpus, read_caches, read_cores, read_nodes
from plough.topology.cpuinfo import parse_cpuinfo, read_cpuinfo
from plough.topology.machine import Cache, Core, Node
from tests.topology.conftest import LayOut

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
NO_INFO = parse_cpuinfo("")


def topology(cpu: int, *, siblings: str, package: str = "0", name: str = "core_cpus_list") -> dict[str, str]:
    here = f"{CPU}/cpu{cpu}/topology"
    return {f"{here}/{name}": f"{siblings}\n", f"{here}/physical_package_id": f"{package}\n"}


def cores(tree: Tree) -> list[tuple[int, tuple[int, ...]]]:
    info = read_cpuinfo(tree)
    found = read_cores(tree, info, online_cpus(tree, info, ()), {}, 0)
    return [(core.socket, core.cpus) for core in found]


def cpuinfo(*cpus: tuple[int, int, int], siblings: int, per_package: int) -> str:
    return "\n".join(
        f"processor : {cpu}\nphysical id : {package}\ncore id : {core}\n"
        f"siblings : {siblings}\ncpu cores : {per_package}\n"
        for cpu, package, core in cpus
    )


def test_siblings_make_a_core(lay_out: LayOut) -> None:
    tree = lay_out(
        {f"{CPU}/online": "0-3\n"}
        | topology(0, siblings="0,2")
        | topology(2, siblings="0,2")
        | topology(1, siblings="1,3", package="1")
        | topology(3, siblings="1,3", package="1")
    )
    assert cores(tree) == [(0, (0, 2)), (1, (1, 3))]


def test_the_older_file_name_will_do(lay_out: LayOut) -> None:
    tree = lay_out(
        {f"{CPU}/online": "0-1\n"}
        | topology(0, siblings="0-1", name="thread_siblings_list")
        | topology(1, siblings="0-1", name="thread_siblings_list")
    )
    assert cores(tree) == [(0, (0, 1))]


def test_package_minus_one_is_socket_zero(lay_out: LayOut) -> None:
    tree = lay_out({f"{CPU}/online": "0\n"} | topology(0, siblings="0", package="-1"))
    assert cores(tree) == [(0, (0,))]


def test_siblings_must_agree(lay_out: LayOut) -> None:
    tree = lay_out(
        {f"{CPU}/online": "0-3\n"}
        | topology(0, siblings="0-3")  # everyone's sibling, says only this one
        | topology(1, siblings="1")
        | topology(2, siblings="0,2")
        | topology(3, siblings="0-1")  # not even its own
    )
    assert cores(tree) == [(0, (0, 2)), (0, (1,)), (0, (3,))]


def test_without_topology_cpuinfo_tells(lay_out: LayOut) -> None:
    text = cpuinfo(
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 0), (5, 0, 1), siblings=4, per_package=2
    )
    tree = lay_out({"/proc/cpuinfo": text})
    assert cores(tree) == [(0, (0, 4)), (0, (1, 5)), (1, (2,)), (1, (3,))]


def test_core_ids_that_put_strangers_together_are_not_believed(lay_out: LayOut) -> None:
    text = cpuinfo((0, 0, 0), (1, 0, 0), (2, 0, 0), siblings=1, per_package=1)
    assert cores(lay_out({"/proc/cpuinfo": text})) == [(0, (0,)), (0, (1,)), (0, (2,))]


def test_offline_siblings_do_not_split_a_core_in_cpuinfo(lay_out: LayOut) -> None:
    text = cpuinfo((0, 0, 0), (1, 0, 1), (2, 0, 0), siblings=3, per_package=2)
    assert cores(lay_out({"/proc/cpuinfo": text})) == [(0, (0, 2)), (0, (1,))]


def test_without_either_each_cpu_is_a_core(lay_out: LayOut) -> None:
    assert cores(lay_out({f"{CPU}/online": "0,2\n"})) == [(0, (0,)), (0, (2,))]


@pytest.mark.parametrize(
    ("files", "online"),
    [
        ({f"{CPU}/online": "1-2\n", f"{CPU}/present": "0-7\n"}, (1, 2)),
        ({f"{CPU}/online": "garbage\n", f"{CPU}/present": "0-2\n", f"{CPU}/cpu1/online": "0\n"}, (0, 2)),
        (
            {f"{CPU}/cpu0/": "", f"{CPU}/cpu3/online": "1\n", f"{CPU}/cpufreq/": "", f"{CPU}/cpu1x/": ""},
            (0, 3),
        ),
        ({"/proc/cpuinfo": "processor : 5\n"}, (5,)),
        ({}, ()),
    ],
)
def test_online(lay_out: LayOut, files: dict[str, str], online: tuple[int, ...]) -> None:
    tree = lay_out(files)
    assert online_cpus(tree, read_cpuinfo(tree), ()) == online


def test_a_captured_affinity_may_name_offline_cpus(lay_out: LayOut) -> None:
    assert online_cpus(lay_out({f"{CPU}/online": "0-1\n"}), NO_INFO, range(128)) == (0, 1)


def test_an_affinity_of_another_numbering_is_believed(lay_out: LayOut) -> None:
    # lxcfs shows a container with CPUs 8-9 an `online` of 0-1.
    assert online_cpus(lay_out({f"{CPU}/online": "0-1\n"}), NO_INFO, (8, 9)) == (0, 1, 8, 9)


def node(number: int, cpus: str, kilobytes: int | None) -> dict[str, str]:
    files = {f"{NODE}/node{number}/cpulist": f"{cpus}\n"}
    if kilobytes is not None:
        files[f"{NODE}/node{number}/meminfo"] = (
            f"\nNode {number} MemTotal:  {kilobytes} kB\nNode {number} MemFree: 1 kB\n"
        )
    return files


def test_nodes(lay_out: LayOut) -> None:
    tree = lay_out(node(0, "0-1", 100) | node(8, "2", 200) | node(252, "", 300) | node(253, "", 0))
    nodes, node_of = read_nodes(tree, 600 * 1024)
    assert [(one.id, one.memory_bytes) for one in nodes] == [(0, 102400), (8, 204800), (252, 307200)]
    assert node_of == {0: 0, 1: 0, 2: 8}


def test_a_node_without_memory_and_one_that_does_not_say(lay_out: LayOut) -> None:
    nodes, _ = read_nodes(lay_out(node(0, "0", 0) | node(1, "1", None)), None)
    assert nodes == (Node(id=0, memory_bytes=0), Node(id=1))


def test_without_numa_node_0_holds_everything(lay_out: LayOut) -> None:
    tree = lay_out({f"{CPU}/online": "0\n"})
    nodes, node_of = read_nodes(tree, 5)
    assert nodes == (Node(id=0, memory_bytes=5),)
    assert read_cores(tree, NO_INFO, (0,), node_of, 0) == (Core(socket=0, node=0, cpus=(0,)),)


def test_an_only_node_has_all_the_memory(lay_out: LayOut) -> None:
    nodes, _ = read_nodes(lay_out(node(0, "0", 7)), 24 * 1024)
    assert nodes == (Node(id=0, memory_bytes=24 * 1024),)


def test_a_cpu_in_no_node_goes_to_the_first(lay_out: LayOut) -> None:
    tree = lay_out(node(1, "0", 1) | node(2, "1", 1))
    nodes, node_of = read_nodes(tree, None)
    assert [core.node for core in read_cores(tree, NO_INFO, (0, 1, 2), node_of, nodes[0].id)] == [1, 1, 2]


def test_memory_total(lay_out: LayOut) -> None:
    assert (
        memory_total(lay_out({"/proc/meminfo": "MemTotal:       24731708 kB\nMemFree: 1 kB\n"}))
        == 24731708 * 1024
    )


@pytest.mark.parametrize("text", ["", "MemTotal", "MemTotal: many kB\n", ": 5 kB\n", "SwapTotal: 5 kB\n"])
def test_memory_total_unknown(lay_out: LayOut, text: str) -> None:
    assert memory_total(lay_out({"/proc/meminfo": text})) is None


def cache(cpu: int, index: int, level: str, kind: str, size: str, shared: str) -> dict[str, str]:
    here = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {
        f"{here}/level": f"{level}\n",
        f"{here}/type": f"{kind}\n",
        f"{here}/size": f"{size}\n",
        f"{here}/shared_cpu_list": f"{shared}\n",
    }


def test_caches(lay_out: LayOut) -> None:
    files: dict[str, str] = {f"{CPU}/cpu0/cache/uevent": ""}
    for cpu in range(4):
        files |= cache(cpu, 0, "1", "Data", "48K", f"{cpu % 2},{cpu % 2 + 2}")
        files |= cache(cpu, 3, "3", "Unified", "30M", "0-3")
    tree = lay_out(files)
    assert read_caches(tree, (0, 1, 2, 3)) == (
        Cache(level=1, type="Data", size_bytes=48 * 1024, instances=2, cpus_per_instance=2),
        Cache(level=3, type="Unified", size_bytes=30 * 2**20, instances=1, cpus_per_instance=4),
    )
    assert [one.instances for one in read_caches(tree, (0, 1, 2))] == [2, 1]


def test_garbled_caches_are_left_out(lay_out: LayOut) -> None:
    tree = lay_out(
        cache(0, 0, "one", "Data", "48K", "0")
        | cache(0, 1, "1", "Data", "48", "0")
        | cache(0, 2, "2", "", "48K", "0")
        | cache(0, 3, "3", "Unified", "99999999999999999999K", "0")
        | cache(0, 4, "4", "Unified", "1G", "what")
        | cache(0, 5, "-1", "Unified", "1G", "0")
    )
    assert read_caches(tree, (0,)) == (
        Cache(level=4, type="Unified", size_bytes=2**30, instances=1, cpus_per_instance=1),
    )
