"""`probe()`: the one place where Plough looks at a machine.

Puts together what the modules beside it read; every path is under a root, so that a captured tree can be
probed like a live machine. Knows nothing of what the answer is for.
"""

from __future__ import annotations

import os
from pathlib import Path

from plough.errors import MachineError
from plough.topology._sysfs import Tree, parse_list
from plough.topology.cgroup import read_cgroup
from plough.topology.cores import memory_total, online_cpus, read_caches, read_cores, read_nodes
from plough.topology.cpuinfo import CpuInfo, find_isa, read_cpuinfo
from plough.topology.machine import Limits, Machine, Node
from plough.topology.software import find_software
from plough.topology.virtualization import find_container, find_hypervisor

__all__ = ["probe"]


def probe(root: str | Path = "/") -> Machine:
    """Describe the machine whose files lie under `root`, as the calling process may use it.

    root: "/" for this machine, or a directory with a captured tree (scripts/capture_machine.py).

    Raises MachineError when not even a CPU's number can be read.
    """
    tree = Tree(root)
    info = read_cpuinfo(tree)
    status = _status(tree)
    affinity = _affinity(tree, status)
    online = online_cpus(tree, info, affinity)
    if not online:
        raise _nothing_there(tree)
    memory = memory_total(tree)
    nodes, node_of = read_nodes(tree, memory)
    environ = os.environ if tree.live else {}
    return Machine(
        hostname=_hostname(tree),
        architecture=_architecture(tree, info),
        model_name=info.model_name,
        cores=read_cores(tree, info, online, node_of, nodes[0].id),
        nodes=nodes,
        limits=_limits(tree, online, affinity, nodes, status),
        memory_bytes=sum(node.memory_bytes or 0 for node in nodes) if memory is None else memory,
        caches=read_caches(tree, online),
        isa=find_isa(info),
        hypervisor=find_hypervisor(tree, info),
        container=find_container(tree, environ),
        software=find_software(tree.root),
    )


def _limits(
    tree: Tree,
    online: tuple[int, ...],
    affinity: frozenset[int],
    nodes: tuple[Node, ...],
    status: dict[str, str],
) -> Limits:
    cgroup = read_cgroup(tree)
    allowed = _within(online, affinity)
    cpuset = _within(online, cgroup.cpus)
    if not set(allowed) <= set(cpuset):
        # The kernel keeps an affinity inside the cpuset, so these files are of another numbering (lxcfs) or
        # another moment. The running machine's affinity is what would be run on; two files may be combined.
        both = () if tree.live else tuple(sorted(set(allowed) & set(cpuset)))
        allowed, cpuset = (both, cpuset) if both else (allowed, allowed)
    with_memory = [node.id for node in nodes if node.memory_bytes != 0]
    usable = tuple(with_memory) or tuple(node.id for node in nodes)
    return Limits(
        cpus=allowed,
        cpuset=cpuset,
        nodes=_within(_within(usable, _parsed(status.get("Mems_allowed_list"))), cgroup.nodes),
        quota_cpus=cgroup.quota_cpus,
        memory_bytes=cgroup.memory_bytes,
        cgroup=cgroup.version,
    )


def _within(ids: tuple[int, ...], allowed: tuple[int, ...] | frozenset[int] | None) -> tuple[int, ...]:
    """Those of `ids` that are allowed; all of them when that is not known or would leave none."""
    kept = ids if allowed is None else tuple(number for number in ids if number in set(allowed))
    return kept or ids


def _affinity(tree: Tree, status: dict[str, str]) -> frozenset[int]:
    """Logical CPUs the calling process may run on; empty when not known."""
    if tree.live and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(_parsed(status.get("Cpus_allowed_list")) or ())


def _status(tree: Tree) -> dict[str, str]:
    pairs = (line.partition(":") for line in (tree.text("/proc/self/status") or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _parsed(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else parse_list(text)
    except ValueError:
        return None


def _hostname(tree: Tree) -> str:
    named = tree.text("/proc/sys/kernel/hostname") or tree.text("/etc/hostname")
    return named or (os.uname().nodename if tree.live else "") or "unknown"


def _architecture(tree: Tree, info: CpuInfo) -> str:
    if tree.live:
        return os.uname().machine
    return tree.text("/proc/sys/kernel/arch") or info.architecture


def _nothing_there(tree: Tree) -> MachineError:
    if tree.live:
        return MachineError(
            "no CPU can be found on this machine: /sys/devices/system/cpu and /proc/cpuinfo tell of none",
            hint="Plough needs Linux with /proc mounted; in a chroot, `mount -t proc proc /proc` helps",
        )
    return MachineError(
        f"{tree.root} holds no machine: there is no CPU in its sys/devices/system/cpu or proc/cpuinfo",
        hint="give the directory that contains `proc` and `sys`, or describe the machine where it runs: "
        "`plough probe --json > machine.json`",
    )
