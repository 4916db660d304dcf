"""scripts/capture_machine.py keeps everything that the probe reads, and nothing that it should not."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from plough.topology import probe
from plough.topology._sysfs import Tree
from plough.topology.machine import Machine, Software
from tests.machines.trees import NAMES, unpacked, write

SCRIPT = Path(__file__).parents[2] / "scripts/capture_machine.py"
sys.path.insert(0, str(SCRIPT.parent))
import capture_machine  # noqa: E402

# Files the probe asks for that a capture leaves out on purpose.
LEFT_OUT = {"/etc/hostname"}


def comparable(machine: Machine) -> Machine:
    """Without what a capture does not hold (software, hints from the environment), and without memory,
    which some virtual machines gain while running."""
    return msgspec.structs.replace(
        machine, hostname="", software=Software(), memory_bytes=0, nodes=(), container=None
    )


@pytest.mark.skipif(not os.path.exists("/sys/devices/system/cpu/online"), reason="needs a Linux machine")
def test_a_captured_machine_probes_like_the_machine(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=60
    )
    captured = probe(write(json.loads(result.stdout), tmp_path))
    assert comparable(captured) == comparable(probe())
    assert captured.hostname == "captured"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("pod")])
def test_every_file_the_probe_opens_is_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: set[str] = set()
    really = Tree._inside

    def recorded(tree: Tree, path: str) -> str:
        inside = really(tree, path)
        if os.path.isfile(inside):
            opened.add(path)
        return inside

    monkeypatch.setattr(Tree, "_inside", recorded)
    with unpacked(name) as root:
        probe(root)
    patterns = [*capture_machine.PATTERNS, *capture_machine.MARKERS, "/proc/sys/kernel/hostname"]
    missed = {
        path
        for path in opened - LEFT_OUT
        if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
        and not (
            path.startswith("/sys/fs/cgroup/") and os.path.basename(path) in capture_machine.CGROUP_FILES
        )
    }
    assert not missed


def test_ids_are_renumbered_consistently() -> None:
    renumber = capture_machine.Renumber()
    first, second = "957ade0f5690846b5fa114c501c9dfb4", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    assert renumber(f"/docker/{first}/x") == f"/docker/{1:032d}/x"
    assert renumber(f"/pod{second}/{first}") == f"/pod{2:036d}/{1:032d}"
    assert (
        renumber("/kubepods-pod1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice") == f"/kubepods-pod{3:036d}.slice"
    )
    assert renumber("/user.slice/user-1000.slice") == "/user.slice/user-1000.slice"


def test_cgroup_directories_cover_namespaces_and_hosts() -> None:
    mountinfo = "31 23 0:28 /kubepods/c1 /cg rw - cgroup2 cgroup2 rw\n"
    found = set(capture_machine.cgroup_directories(mountinfo, "0::/kubepods/c1/job\n"))
    assert {"/cg", "/cg/job", "/cg/kubepods", "/cg/kubepods/c1", "/cg/kubepods/c1/job"} <= found
    assert "/sys/fs/cgroup/memory" in set(capture_machine.cgroup_directories("", ""))


def test_only_lines_that_are_read_are_kept() -> None:
    assert capture_machine.shorten("/proc/self/status", "Name:\tpython\nCpus_allowed_list:\t0-1\n") == (
        "Cpus_allowed_list:\t0-1\n"
    )
    cpu = "processor : {}\nmodel name : X\nflags : a b\n{}\n"
    assert capture_machine.shorten("/proc/cpuinfo", cpu.format(0, "Serial : 12\n") + cpu.format(1, "")) == (
        "processor : 0\nmodel name : X\nflags : a b\n\nprocessor : 1\n"
    )
