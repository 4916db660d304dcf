"""Which logical CPUs are online, which of them share a core, and where cores and memory sit.

sysfs is believed first, /proc/cpuinfo next, and then every CPU is its own core: sandboxes (gVisor) and
containers leave out one or the other. Knows nothing of what the calling process may use (`cgroup.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plough.topology._sysfs import MAX_ID, Tree, to_kilobytes
from plough.topology.cpuinfo import CpuInfo
from plough.topology.machine import Cache, Core, Node

__all__ = ["memory_total", "online_cpus", "read_caches", "read_cores", "read_nodes"]

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def online_cpus(tree: Tree, info: CpuInfo, affinity: Iterable[int]) -> tuple[int, ...]:
    """Logical CPUs that run, ascending; () when nothing tells.

    `affinity` is what the kernel lets this process run on. Where the files contradict it (lxcfs numbers a
    container's CPUs from 0), it is the files that are wrong.
    """
    online = set(tree.ids(f"{CPU}/online") or ())
    if not online:
        present = tree.ids(f"{CPU}/present") or tree.numbered(CPU, "cpu")
        online = {cpu for cpu in present if tree.number(f"{CPU}/cpu{cpu}/online") != 0}
    online = online or set(info.cpus)
    # On the running machine sched_getaffinity names only CPUs that are up. A captured Cpus_allowed_list
    # may name offline ones too, so there it counts only when it has nothing in common with the rest.
    if tree.live or online.isdisjoint(affinity):
        online |= set(affinity)
    return tuple(sorted(online))


def read_cores(
    tree: Tree, info: CpuInfo, online: tuple[int, ...], node_of: Mapping[int, int], first_node: int
) -> tuple[Core, ...]:
    """Physical cores of the online CPUs, sorted by (socket, node, first cpu).

    A core is a set of siblings. core_id would not do: it repeats across sockets and dies.
    """
    cores = [
        Core(
            socket=_socket(tree, info, cpus[0]),
            node=next((node_of[cpu] for cpu in cpus if cpu in node_of), first_node),
            cpus=cpus,
        )
        for cpus in _sibling_sets(tree, info, online)
    ]
    return tuple(sorted(cores, key=lambda core: (core.socket, core.node, core.cpus)))


def _socket(tree: Tree, info: CpuInfo, cpu: int) -> int:
    package = tree.number(f"{CPU}/cpu{cpu}/topology/physical_package_id")
    if package is None:
        package = info.number(cpu, "physical id")
    # -1: firmware told the kernel nothing (some Arm machines and virtual machines).
    return package if package is not None and package >= 0 else 0


def _sibling_sets(tree: Tree, info: CpuInfo, online: tuple[int, ...]) -> list[tuple[int, ...]]:
    listed = {cpu: _siblings_in_sysfs(tree, cpu) & set(online) for cpu in online}
    silent = [cpu for cpu in online if not listed[cpu]]
    listed.update(_siblings_in_cpuinfo(info, silent))
    found: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for cpu in online:
        if cpu not in taken:
            # A sibling must name this CPU as its sibling too; each CPU belongs to exactly one core.
            siblings = {other for other in listed[cpu] - taken if cpu in listed[other]} | {cpu}
            taken |= siblings
            found.append(tuple(sorted(siblings)))
    return found


def _siblings_in_sysfs(tree: Tree, cpu: int) -> set[int]:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older name
        siblings = tree.ids(f"{CPU}/cpu{cpu}/topology/{name}")
        if siblings and cpu in siblings:
            return set(siblings)
    return set()


def _siblings_in_cpuinfo(info: CpuInfo, cpus: Iterable[int]) -> dict[int, set[int]]:
    groups: dict[tuple[int, int], set[int]] = {}
    alone: dict[int, set[int]] = {}
    for cpu in cpus:
        package, core = info.number(cpu, "physical id"), info.number(cpu, "core id")
        if package is None or core is None:
            alone[cpu] = {cpu}
        else:
            groups.setdefault((package, core), set()).add(cpu)
    for group in groups.values():
        # Core ids that repeat across dies, or that a hypervisor left at 0, put strangers together.
        believable = len(group) <= _threads_per_core(info, min(group))
        alone.update({cpu: group if believable else {cpu} for cpu in group})
    return alone


def _threads_per_core(info: CpuInfo, cpu: int) -> int:
    siblings, cores = info.number(cpu, "siblings"), info.number(cpu, "cpu cores")
    if not siblings or not cores:
        return 1
    return -(-siblings // cores)  # rounded up: offline CPUs leave fewer siblings than cores x threads


def read_nodes(tree: Tree, memory_bytes: int | None) -> tuple[tuple[Node, ...], dict[int, int]]:
    """NUMA nodes, ascending, and the node of each logical CPU.

    A kernel without NUMA gets one node 0 with `memory_bytes`. Nodes with neither memory nor CPUs (places
    kept for hot-plug) are left out.
    """
    nodes: list[Node] = []
    node_of: dict[int, int] = {}
    for number in tree.numbered(NODE, "node"):
        cpus = tree.ids(f"{NODE}/node{number}/cpulist") or ()
        memory = _meminfo(tree, f"{NODE}/node{number}/meminfo")
        if cpus or memory:
            nodes.append(Node(id=number, memory_bytes=memory))
            for cpu in cpus:
                node_of.setdefault(cpu, number)
    if not nodes:
        nodes = [Node(id=0, memory_bytes=memory_bytes)]
    elif len(nodes) == 1 and memory_bytes is not None:
        # An only node holds all the memory there is. Its own file lags behind in virtual machines whose
        # memory comes up after boot (seen: 7 of 24 GB).
        nodes = [Node(id=nodes[0].id, memory_bytes=max(memory_bytes, nodes[0].memory_bytes or 0))]
    return tuple(nodes), node_of


def memory_total(tree: Tree) -> int | None:
    """MemTotal of /proc/meminfo, in bytes."""
    return _meminfo(tree, "/proc/meminfo")


def _meminfo(tree: Tree, path: str) -> int | None:
    # "MemTotal:  24731708 kB" in /proc, "Node 0 MemTotal:  7170260 kB" in a node's directory
    for line in (tree.text(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name.split()[-1:] == ["MemTotal"]:
            return to_kilobytes(value)
    return None


def read_caches(tree: Tree, online: tuple[int, ...]) -> tuple[Cache, ...]:
    """The caches by kind, sorted by level and type. An offline sibling does not make a second kind."""
    sharers: dict[tuple[int, str, int], list[int]] = {}
    covered: dict[str, set[int]] = {}
    for cpu in online:
        for name in tree.names(f"{CPU}/cpu{cpu}/cache"):
            # Each CPU is in one instance per index, so one of its CPUs speaks for an instance. This keeps
            # 768 CPUs to a few thousand reads.
            seen = covered.setdefault(name, set())
            if not name.startswith("index") or cpu in seen:
                continue
            path = f"{CPU}/cpu{cpu}/cache/{name}"
            level, size = tree.number(f"{path}/level"), _cache_size(tree.text(f"{path}/size"))
            kind = tree.text(f"{path}/type")
            if level is None or not 0 < level <= MAX_ID or size is None or not kind:
                continue
            shared = set(tree.ids(f"{path}/shared_cpu_list") or ()) & set(online) | {cpu}
            seen |= shared
            sharers.setdefault((level, kind, size), []).append(len(shared))
    return tuple(
        Cache(level=level, type=kind, size_bytes=size, instances=len(counts), cpus_per_instance=max(counts))
        for (level, kind, size), counts in sorted(sharers.items())
    )


def _cache_size(text: str | None) -> int | None:
    if not text or not text[:-1].isdecimal() or text[-1] not in _UNITS or len(text) > 10:
        return None
    return int(text[:-1]) * _UNITS[text[-1]] or None
