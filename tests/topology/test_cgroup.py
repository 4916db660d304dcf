"""Control groups: versions 1, 2, hybrid; on a host, in containers, garbled, and for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from plough.topology.cgroup import CgroupLimits, cgroup_paths, read_cgroup
from tests.topology.conftest import LayOut

V1_UNLIMITED = "9223372036854771712\n"
TOP = "/sys/fs/cgroup"


def process(cgroup: str, *mounts: tuple[str, str, str]) -> dict[str, str]:
    """mounts: (root, mount point, "cgroup2" or version 1 controllers)."""
    lines = ["27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"]
    for root, point, kind in mounts:
        tail = "cgroup2 cgroup2 rw" if kind == "cgroup2" else f"cgroup cgroup rw,{kind}"
        lines.append(f"31 23 0:28 {root} {point} rw,nosuid shared:9 master:4 - {tail}")
    return {"/proc/self/cgroup": cgroup, "/proc/self/mountinfo": "\n".join(lines) + "\n"}


def v2(cgroup: str = "0::/a/b\n", root: str = "/") -> dict[str, str]:
    return process(cgroup, (root, TOP, "cgroup2")) | {f"{TOP}/cgroup.controllers": "cpu cpuset memory\n"}


def test_v2_every_ancestor_counts_and_the_smallest_wins(lay_out: LayOut) -> None:
    tree = lay_out(
        v2()
        | {
            f"{TOP}/a/cpu.max": "150000 100000\n",
            f"{TOP}/a/memory.max": "max\n",
            f"{TOP}/a/b/cpu.max": "400000 100000\n",
            f"{TOP}/a/b/memory.max": "1048576\n",
        }
    )
    assert read_cgroup(tree) == CgroupLimits(version="v2", quota_cpus=1.5, memory_bytes=1048576)


def test_v2_cpuset_of_the_innermost_group_that_has_one(lay_out: LayOut) -> None:
    tree = lay_out(
        v2("0::/a/b/c\n")
        | {
            # A partition below takes its CPUs away from /a: the lists need not be nested.
            f"{TOP}/a/cpuset.cpus.effective": "0-3\n",
            f"{TOP}/a/cpuset.mems.effective": "0-1\n",
            f"{TOP}/a/b/cpuset.cpus.effective": "4-7\n",
            f"{TOP}/a/b/cpuset.mems.effective": "1\n",
            f"{TOP}/a/b/c/": "",
        }
    )
    limits = read_cgroup(tree)
    assert (limits.cpus, limits.nodes) == ((4, 5, 6, 7), (1,))


def test_v2_max_is_no_limit(lay_out: LayOut) -> None:
    tree = lay_out(v2() | {f"{TOP}/a/b/cpu.max": "max 100000\n", f"{TOP}/a/b/memory.max": "max\n"})
    assert read_cgroup(tree) == CgroupLimits(version="v2")


@pytest.mark.parametrize(
    ("cgroup", "root"),
    [
        ("0::/\n", "/"),  # a cgroup namespace: the container is the top
        ("0::/kubepods/pod1/c1\n", "/kubepods/pod1/c1"),  # no namespace: the mount starts at the container
        ("0::/kubepods/pod1/c1\n", "/"),  # the host's path, of which nothing can be seen here
        ("0::/../../elsewhere\n", "/"),  # moved out of its own namespace
        ("0::/other\n", "/kubepods/pod1/c1"),  # a path that is not under the mount
        ("0::/\n", "/../.."),  # a mount from above the namespace
    ],
)
def test_v2_in_a_container(lay_out: LayOut, cgroup: str, root: str) -> None:
    files = {f"{TOP}/cpu.max": "800000 100000\n", f"{TOP}/memory.max": "34359738368\n"}
    limits = read_cgroup(lay_out(v2(cgroup, root) | files | {"/elsewhere/cpu.max": "1000 100000\n"}))
    assert (limits.quota_cpus, limits.memory_bytes, limits.version) == (8.0, 32 * 2**30, "v2")


def test_v2_below_the_container(lay_out: LayOut) -> None:
    # A process in a child group of the container's, and a mount that starts at the container.
    files = {f"{TOP}/cpu.max": "800000 100000\n", f"{TOP}/job/cpu.max": "200000 100000\n"}
    assert read_cgroup(lay_out(v2("0::/docker/c1/job\n", "/docker/c1") | files)).quota_cpus == 2.0


def v1(cpu: str, cpuset: str, memory: str, root: str = "/") -> dict[str, str]:
    return process(
        f"4:memory:{memory}\n3:cpuset:{cpuset}\n2:cpu,cpuacct:{cpu}\n1:name=systemd:/x\n0::/x\n",
        (root, f"{TOP}/cpu,cpuacct", "cpu,cpuacct"),
        (root, f"{TOP}/cpuset", "cpuset"),
        (root, f"{TOP}/memory", "memory"),
        (root, f"{TOP}/systemd", "name=systemd"),
        (root, f"{TOP}/unified", "cgroup2"),
    )


def test_v1_and_hybrid(lay_out: LayOut) -> None:
    tree = lay_out(
        v1("/a/b", "/s", "/m/n")
        | {
            f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{TOP}/cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
            f"{TOP}/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            f"{TOP}/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
            f"{TOP}/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            f"{TOP}/cpuset/cpuset.cpus": "0-7\n",
            f"{TOP}/cpuset/s/cpuset.cpus": "0-3\n",
            f"{TOP}/cpuset/s/cpuset.effective_cpus": "2-3\n",
            f"{TOP}/cpuset/s/cpuset.mems": "0\n",
            f"{TOP}/memory/m/memory.limit_in_bytes": "2097152\n",
            f"{TOP}/memory/m/n/memory.limit_in_bytes": V1_UNLIMITED,
            f"{TOP}/unified/x/": "",
        }
    )
    assert read_cgroup(tree) == CgroupLimits(
        version="v1", quota_cpus=2.5, memory_bytes=2097152, cpus=(2, 3), nodes=(0,)
    )


def test_v1_container_sees_an_ancestors_memory_limit_in_memory_stat(lay_out: LayOut) -> None:
    tree = lay_out(
        v1("/docker/c1", "/docker/c1", "/docker/c1", root="/docker/c1")
        | {
            f"{TOP}/memory/memory.limit_in_bytes": V1_UNLIMITED,
            f"{TOP}/memory/memory.stat": "cache 0\nhierarchical_memory_limit 4194304\ntotal_cache 0\n",
            f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
    )
    limits = read_cgroup(tree)
    assert (limits.memory_bytes, limits.quota_cpus) == (4194304, 0.5)


def test_hybrid_with_cpuset_in_v2(lay_out: LayOut) -> None:
    tree = lay_out(
        process("2:cpu:/a\n0::/a\n", ("/", f"{TOP}/cpu", "cpu"), ("/", f"{TOP}/unified", "cgroup2"))
        | {
            f"{TOP}/cpu/a/cpu.cfs_quota_us": "300000\n",
            f"{TOP}/cpu/a/cpu.cfs_period_us": "100000\n",
            f"{TOP}/unified/a/cpuset.cpus.effective": "1-2\n",
            f"{TOP}/unified/a/memory.max": "1000\n",
        }
    )
    limits = read_cgroup(tree)
    assert (limits.version, limits.quota_cpus, limits.cpus, limits.memory_bytes) == ("v1", 3.0, (1, 2), 1000)


@pytest.mark.parametrize(
    ("cpu_max", "quota"),
    [
        ("0 100000", None),
        ("-5 100000", None),
        ("100000 0", None),
        ("lots", None),
        ("", None),
        ("200000", 2.0),
        ("200000 x", None),
        ("1" * 40, None),
    ],
)
def test_nonsense_quotas(lay_out: LayOut, cpu_max: str, quota: float | None) -> None:
    assert read_cgroup(lay_out(v2() | {f"{TOP}/a/b/cpu.max": cpu_max})).quota_cpus == quota


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "9" * 30, V1_UNLIMITED, "9223372036854710272"])
def test_nonsense_and_unlimited_memory(lay_out: LayOut, limit: str) -> None:
    assert read_cgroup(lay_out(v2() | {f"{TOP}/a/b/memory.max": limit})).memory_bytes is None


@pytest.mark.parametrize("text", ["0-x\n", "\n", "9-1\n"])
def test_a_cpuset_that_makes_no_sense_is_the_parents(lay_out: LayOut, text: str) -> None:
    files = {f"{TOP}/a/cpuset.cpus.effective": "0-1\n", f"{TOP}/a/b/cpuset.cpus.effective": text}
    assert read_cgroup(lay_out(v2() | files)).cpus == (0, 1)


def test_no_cgroup_at_all(lay_out: LayOut) -> None:
    assert read_cgroup(lay_out({})) == CgroupLimits()
    assert read_cgroup(lay_out(process("0::/\n"))) == CgroupLimits()


def test_without_mountinfo_the_usual_places_are_tried(lay_out: LayOut) -> None:
    files = {f"{TOP}/cpu/cpu.cfs_quota_us": "100000\n", f"{TOP}/cpu/cpu.cfs_period_us": "50000\n"}
    assert read_cgroup(lay_out(files)) == CgroupLimits(version="v1", quota_cpus=2.0)
    files = {f"{TOP}/cgroup.controllers": "cpu\n", f"{TOP}/cpu.max": "100000 100000\n"}
    assert read_cgroup(lay_out(files)) == CgroupLimits(version="v2", quota_cpus=1.0)


def test_garbled_process_files(lay_out: LayOut) -> None:
    garbage = "- - -\n31 23 0:28 / \0 rw - cgroup2\n31 23 0:28 / /x\\000 rw - cgroup2 c rw\n\\\\\n"
    tree = lay_out({"/proc/self/cgroup": "::\nnonsense\n0:\n0::relative\n", "/proc/self/mountinfo": garbage})
    assert read_cgroup(tree) == CgroupLimits()
    assert cgroup_paths(tree) == {}


def test_mount_points_with_spaces_and_colons_in_paths(lay_out: LayOut) -> None:
    tree = lay_out(
        process("0::/a:b\n", ("/", "/my\\040groups", "cgroup2"))
        | {"/my groups/a:b/cpu.max": "100000 100000\n"}
    )
    assert read_cgroup(tree).quota_cpus == 1.0


# --- for real -----------------------------------------------------------------------------------------------

PROBE = """
import json, sys
from plough.topology import probe
limits = probe().limits
print(json.dumps([limits.quota_cpus, limits.memory_bytes, limits.cpus, limits.cpuset, limits.cgroup]))
"""


@pytest.fixture
def real_groups() -> Iterator[dict[str, Path]]:
    """A group with a child in each version 1 hierarchy of this machine, gone again afterwards."""
    name = f"plough-test-{uuid.uuid4().hex[:8]}"
    children = {kind: Path(TOP, kind, name, "child") for kind in ("cpu", "cpuset", "memory")}
    try:
        try:
            for child in children.values():
                if not (child.parent.parent / "cgroup.procs").exists():
                    pytest.skip("no cgroup v1 hierarchy here")
                child.mkdir(parents=True)
        except OSError as error:
            pytest.skip(f"no right to make control groups: {error}")
        yield children
    finally:
        for child in children.values():
            for group in (child, child.parent):
                with suppress(OSError):
                    group.rmdir()


def test_probe_inside_real_groups(real_groups: dict[str, Path]) -> None:
    last = max(os.sched_getaffinity(0))
    try:
        (real_groups["cpu"].parent / "cpu.cfs_quota_us").write_text("150000")
        (real_groups["memory"].parent / "memory.limit_in_bytes").write_text(str(2**30))
        for group in (real_groups["cpuset"].parent, real_groups["cpuset"]):
            (group / "cpuset.mems").write_text((group.parent / "cpuset.mems").read_text())
            (group / "cpuset.cpus").write_text(str(last))
    except OSError as error:
        pytest.skip(f"no right to limit control groups: {error}")
    join = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in real_groups.values())
    result = subprocess.run(
        ["sh", "-c", f'{join} && exec "$0" -c "$1"', sys.executable, PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [1.5, 2**30, [last], [last], "v1"]
