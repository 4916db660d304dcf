"""What the calling process's control groups allow: CPU time, CPUs, memory, memory nodes.

Versions 1 and 2 and both at once (systemd's "hybrid"). Knows nothing of sockets or cores.

Where a process's group lies takes two files. /proc/self/cgroup gives its path in the hierarchy;
/proc/self/mountinfo says where the hierarchy is mounted and which group is the root of that mount.
Inside a container the mount shows only the container's part, and the path may be "/" (a cgroup namespace),
the host's path (none), or one that the mount does not reach: then the top of the mount is all there is to
see, and it is the container's own group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from plough.topology._sysfs import Tree, to_int

__all__ = ["CgroupLimits", "cgroup_paths", "read_cgroup"]

CONTROLLERS = ("cpu", "cpuset", "memory")
# Version 1 writes "unlimited" as the largest multiple of the page size in 63 bits; nothing real comes near.
UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """None means no limit, or none that could be read. `version` is "v1", "v2" or None."""

    version: str | None = None
    quota_cpus: float | None = None
    memory_bytes: int | None = None
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Mount:
    root: str
    point: str
    controllers: frozenset[str]  # empty for version 2


def read_cgroup(tree: Tree) -> CgroupLimits:
    """The tightest limits over the process's groups and every ancestor that can be seen."""
    paths = cgroup_paths(tree)
    mounts = _mounts(tree)
    quotas: list[float] = []
    memory: list[int] = []
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    versions: set[str] = set()
    for controller in CONTROLLERS:
        groups = _groups(tree, [m for m in mounts if controller in m.controllers], paths.get(controller, "/"))
        if groups:
            versions.add("v1")
        if controller == "cpu":
            quotas += [quota for group in groups if (quota := _quota_v1(tree, group)) is not None]
        elif controller == "memory":
            memory += [limit for group in groups for limit in _memory_v1(tree, group)]
        else:
            cpus = cpus or _nearest(tree, groups, "cpuset.effective_cpus", "cpuset.cpus")
            nodes = nodes or _nearest(tree, groups, "cpuset.effective_mems", "cpuset.mems")
    groups = _groups(tree, [m for m in mounts if not m.controllers], paths.get("", "/"))
    if groups:
        versions.add("v2")
    quotas += [quota for group in groups if (quota := _quota_v2(tree, group)) is not None]
    memory += [limit for group in groups if (limit := _bytes(tree.text(f"{group}/memory.max"))) is not None]
    cpus = cpus or _nearest(tree, groups, "cpuset.cpus.effective")
    nodes = nodes or _nearest(tree, groups, "cpuset.mems.effective")
    return CgroupLimits(
        # In a hybrid the controllers that limit anything are version 1's.
        version=min(versions, default=None),
        quota_cpus=min(quotas, default=None),
        memory_bytes=min(memory, default=None),
        cpus=cpus,
        nodes=nodes,
    )


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """/proc/self/cgroup as controller -> path; version 2's controller is ""."""
    paths: dict[str, str] = {}
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)  # hierarchy:controllers:path, and the path may hold colons
        if len(fields) == 3 and fields[2].startswith("/"):
            for controller in fields[1].split(","):
                paths.setdefault(controller, fields[2])
    return paths


def _mounts(tree: Tree) -> list[_Mount]:
    """cgroup mounts, the one mounted last (which hides the others at its place) first."""
    text = tree.text("/proc/self/mountinfo")
    if text is None:
        return _usual_mounts(tree)
    mounts: list[_Mount] = []
    for line in text.splitlines():
        # id parent major:minor ROOT POINT options [optional...] - TYPE source SUPER-OPTIONS
        before, dash, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(tail) < 3:
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4])
        if tail[0] == "cgroup2":
            mounts.append(_Mount(root=root, point=point, controllers=frozenset()))
        controllers = frozenset(tail[2].split(",")) & frozenset(CONTROLLERS)
        if tail[0] == "cgroup" and controllers:  # "name=systemd" and its like limit nothing
            mounts.append(_Mount(root=root, point=point, controllers=controllers))
    return mounts[::-1]


def _usual_mounts(tree: Tree) -> list[_Mount]:
    top = "/sys/fs/cgroup"
    if tree.exists(f"{top}/cgroup.controllers"):
        return [_Mount(root="/", point=top, controllers=frozenset())]
    return [_Mount(root="/", point=f"{top}/{name}", controllers=frozenset({name})) for name in CONTROLLERS]


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _groups(tree: Tree, mounts: list[_Mount], path: str) -> list[str]:
    """Directories of the process's group and its visible ancestors, the innermost first."""
    best: list[str] = []
    for mount in mounts:
        groups = [group for group in _upwards(mount, path) if tree.is_dir(group)]
        if len(groups) > len(best):  # of several mounts of one hierarchy, the one that shows most
            best = groups
    return best


def _upwards(mount: _Mount, path: str) -> Iterator[str]:
    root = mount.root.rstrip("/")
    below = path[len(root) :] if path == root or path.startswith(f"{root}/") else ""
    parts = [part for part in below.split("/") if part]
    if ".." in parts:  # the process is outside its own cgroup namespace
        parts = []
    while parts:
        yield "/".join([mount.point.rstrip("/"), *parts])
        parts.pop()
    yield mount.point


def _nearest(tree: Tree, groups: list[str], *names: str) -> tuple[int, ...] | None:
    """The innermost list that is not empty.

    Not the intersection over ancestors: "effective" has them in it already, and a version 2 partition takes
    its CPUs away from its parent's list.
    """
    found = (tree.ids(f"{group}/{name}") for group in groups for name in names)
    return next((ids for ids in found if ids), None)


def _quota_v2(tree: Tree, group: str) -> float | None:
    fields = (tree.text(f"{group}/cpu.max") or "").split()
    if not fields:
        return None
    # The period may be missing only by garbling; the kernel's default then.
    return _quota(to_int(fields[0]), to_int(fields[1]) if len(fields) > 1 else 100_000)


def _quota_v1(tree: Tree, group: str) -> float | None:
    return _quota(tree.number(f"{group}/cpu.cfs_quota_us"), tree.number(f"{group}/cpu.cfs_period_us"))


def _quota(quota: int | None, period: int | None) -> float | None:
    # "max" is no number, and -1 is version 1's "unlimited"
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _memory_v1(tree: Tree, group: str) -> Iterator[int]:
    stat = tree.text(f"{group}/memory.stat") or ""
    # This one counts ancestors that a container cannot see.
    hierarchical = next(
        (line for line in stat.splitlines() if line.startswith("hierarchical_memory_limit ")), ""
    )
    for text in (tree.text(f"{group}/memory.limit_in_bytes"), hierarchical.partition(" ")[2]):
        if (limit := _bytes(text)) is not None:
            yield limit


def _bytes(text: str | None) -> int | None:
    limit = to_int(text)
    return limit if limit is not None and 0 < limit < UNLIMITED_BYTES else None
