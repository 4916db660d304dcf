"""The whole probe: this machine, trees with pieces missing, and trees with anything at all in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plough.topology
from plough.errors import MachineError
from plough.topology import Machine, Software, probe
from tests.machines.trees import NAMES, scratch_directory, tree, unpacked, write

CPU = "/sys/devices/system/cpu"
SMALL = tree("vm-2-core")


def check(machine: Machine) -> None:
    """What holds for any machine, however wrong its files."""
    cpus = [cpu for core in machine.cores for cpu in core.cpus]
    assert cpus
    assert len(cpus) == len(set(cpus))
    assert list(machine.cores) == sorted(
        machine.cores, key=lambda core: (core.socket, core.node, core.cpus[0])
    )
    assert all(core.cpus == tuple(sorted(core.cpus)) for core in machine.cores)
    nodes = [node.id for node in machine.nodes]
    assert nodes == sorted(set(nodes))
    assert {core.node for core in machine.cores} <= set(nodes)
    limits = machine.limits
    assert limits.cpus
    assert set(limits.cpus) <= set(limits.cpuset) <= set(cpus)
    assert limits.nodes
    assert set(limits.nodes) <= set(nodes)
    assert limits.quota_cpus is None or limits.quota_cpus > 0
    assert Machine.from_json(machine.to_json()) == machine


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_this_machine() -> None:
    machine = probe()
    check(machine)
    assert machine.limits.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert machine.architecture == os.uname().machine


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_narrower_affinity_leaves_the_cpuset() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two CPUs")
    try:
        os.sched_setaffinity(0, {min(before)})
        limits = probe().limits
    finally:
        os.sched_setaffinity(0, before)
    assert limits.cpus == (min(before),)
    assert set(limits.cpuset) >= before


@pytest.mark.parametrize("name", NAMES)
def test_what_holds_for_any_machine_holds_for_these(name: str) -> None:
    with unpacked(name) as root:
        machine = probe(root)
    check(machine)
    assert machine.software == Software()


def test_topology_does_not_load_torch() -> None:
    code = "import sys, plough.topology; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_public_names() -> None:
    names = plough.topology.__all__
    assert names == sorted(names)
    assert all(hasattr(plough.topology, name) for name in names)


@pytest.mark.parametrize(
    "files", [{}, {f"{CPU}/online": "\n"}, {"/proc/cpuinfo": "garbage\0\n"}, {CPU: "a file\n"}]
)
def test_a_tree_without_a_cpu_is_an_error_with_a_hint(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(MachineError, match="holds no machine") as error:
        probe(write(files, tmp_path))
    assert "plough probe --json" in (error.value.hint or "")


def test_a_root_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="gone"):
        probe(tmp_path / "gone")


def test_the_barest_tree(tmp_path: Path) -> None:
    machine = probe(write({"/proc/cpuinfo": "processor : 0\n\nprocessor : 1\n"}, tmp_path))
    check(machine)
    assert [core.cpus for core in machine.cores] == [(0,), (1,)]
    assert (machine.model_name, machine.hostname, machine.memory_bytes) == ("unknown", "unknown", 0)
    assert machine.limits.cgroup is None


def test_a_sandbox_that_shows_no_sysfs(tmp_path: Path) -> None:
    # gVisor: /proc/cpuinfo, meminfo and status, nothing in /sys/devices/system
    machine = probe(
        write({path: text for path, text in SMALL.items() if not path.startswith("/sys")}, tmp_path)
    )
    check(machine)
    assert [core.cpus for core in machine.cores] == [(0,), (1,)]
    assert machine.nodes[0].memory_bytes == machine.memory_bytes > 0
    assert machine.caches == ()
    assert "amx_bf16" in machine.isa


def test_lxcfs_numbers_from_zero_but_the_affinity_is_real(tmp_path: Path) -> None:
    files = {
        f"{CPU}/online": "0-1\n",
        "/proc/cpuinfo": "processor : 0\n\nprocessor : 1\n",
        "/proc/self/status": "Cpus_allowed_list:\t8-9\n",
    }
    machine = probe(write(files, tmp_path))
    check(machine)
    assert machine.limits.cpus == (8, 9)


@pytest.mark.parametrize(
    ("affinity", "cpuset", "cpus", "allowed"),
    [
        ("0-7", "2-3", (2, 3), (2, 3)),  # the files are of two moments: what both allow
        ("2", "2-3", (2,), (2, 3)),
        ("0-1", "2-3", (0, 1), (0, 1)),  # they contradict each other: the affinity is what runs
        ("nonsense", "2-3", (2, 3), (2, 3)),
        ("2", "64-67", (2,), tuple(range(8))),  # a cpuset of another numbering allows nothing here
    ],
)
def test_affinity_and_cpuset(
    tmp_path: Path, affinity: str, cpuset: str, cpus: tuple[int, ...], allowed: tuple[int, ...]
) -> None:
    files = {
        f"{CPU}/online": "0-7\n",
        "/proc/self/status": f"Cpus_allowed_list:\t{affinity}\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset\n",
        "/sys/fs/cgroup/cpuset.cpus.effective": f"{cpuset}\n",
    }
    limits = probe(write(files, tmp_path)).limits
    assert (limits.cpus, limits.cpuset) == (cpus, allowed)


def test_memory_comes_only_from_nodes_that_have_some(tmp_path: Path) -> None:
    node = "/sys/devices/system/node/node"
    files = {
        f"{CPU}/online": "0-3\n",
        f"{node}0/cpulist": "0-1\n",
        f"{node}0/meminfo": "Node 0 MemTotal: 0 kB\n",
        f"{node}1/cpulist": "2-3\n",
        f"{node}1/meminfo": "Node 1 MemTotal: 4096 kB\n",
        f"{node}2/meminfo": "Node 2 MemTotal: 4096 kB\n",
        "/proc/self/status": "Mems_allowed_list:\t0-1\n",
    }
    machine = probe(write(files, tmp_path))
    assert machine.limits.nodes == (1,)
    assert machine.memory_bytes == 2 * 4096 * 1024


# What a file of the tree may hold instead of what it should.
GARBAGE = st.one_of(
    st.none(),  # missing
    st.sampled_from(
        ["", "\n", "max\n", "-1\n", "0\n", "0-\n", "65535\n", "0-65535\n", "9" * 18 + "\n", "9" * 40]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=30),
)
FILES = sorted(path for path in SMALL if not path.endswith("/"))


def check_unless_refused(files: Mapping[str, str]) -> None:
    with scratch_directory() as scratch:
        try:
            machine = probe(write(files, scratch))
        except MachineError:  # a CPU's number is the one thing there must be
            return
        check(machine)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FILES), GARBAGE, min_size=1, max_size=len(FILES)))
def test_any_garbage_gives_a_machine_or_a_machine_error(garbage: dict[str, str | None]) -> None:
    files = {path: text for path, text in (SMALL | garbage).items() if text is not None}
    check_unless_refused(files)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(FILES), unique=True, min_size=1))
def test_directories_in_place_of_files(replaced: list[str]) -> None:
    files = {(f"{path}/" if path in replaced else path): text for path, text in SMALL.items()}
    check_unless_refused(files)
