#!/usr/bin/env python3
"""Write the files that describe this machine into one JSON file, to plan for it or report a bug elsewhere.

    python capture_machine.py > my-machine.tree.json

Needs nothing but Python and no rights beyond yours. The file maps each path to its content ("" and a
trailing slash: a directory); symbolic links are followed. What could tell who you are stays behind: the
host's name becomes "captured", ids in control group paths are renumbered, and of files that say more than
Plough reads only the lines it reads are kept. Read the result before you send it.

It must stay one file of standard library that runs on a machine where Plough is not installed. What it
captures is checked against what Plough's probe opens by tests/topology/test_capture.py.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Callable, Iterable

HOSTNAME = "captured"

PATTERNS = (
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/present",
    "/sys/devices/system/cpu/cpu[0-9]*/online",
    "/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id",
    "/sys/devices/system/cpu/cpu[0-9]*/topology/core_id",
    "/sys/devices/system/cpu/cpu[0-9]*/topology/die_id",
    "/sys/devices/system/cpu/cpu[0-9]*/topology/core_cpus_list",
    "/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list",
    "/sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/level",
    "/sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/type",
    "/sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/size",
    "/sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/shared_cpu_list",
    "/sys/devices/system/node/node[0-9]*/cpulist",
    "/sys/devices/system/node/node[0-9]*/distance",
    "/sys/devices/system/node/node[0-9]*/meminfo",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/hypervisor/type",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/sys/firmware/devicetree/base/hypervisor/compatible",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/proc/sys/kernel/arch",
)
# Only whether they are there matters.
MARKERS = ("/.dockerenv", "/.singularity.d", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
CGROUP_FILES = (
    "cgroup.controllers",
    "cpu.max",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.mems",
    "cpuset.mems.effective",
    "cpuset.effective_mems",
    "memory.max",
    "memory.limit_in_bytes",
    "memory.stat",
)
# Of every CPU after the first, /proc/cpuinfo's lines that may differ and matter.
PER_CPU = ("processor", "physical id", "siblings", "core id", "cpu cores")


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def lines_with(text: str, keep: Callable[[str], bool]) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if keep(line))


def shorten_cpuinfo(text: str) -> str:
    blocks = [block for block in text.split("\n\n") if block.strip()]
    short = [lines_with(block, lambda line: not line.startswith(("Serial", "Hardware"))) for block in blocks]
    uniform = len({line for block in short for line in block.splitlines() if line.startswith("flags")}) <= 1
    if uniform and short and "flags" in short[0]:
        short[1:] = [
            lines_with(block, lambda line: line.partition(":")[0].strip() in PER_CPU) for block in short[1:]
        ]
    return "\n".join(short)


def shorten(path: str, text: str) -> str:
    """Only the lines that Plough reads, of files that say much more."""
    name = os.path.basename(path)
    if path == "/proc/cpuinfo":
        return shorten_cpuinfo(text)
    if name == "meminfo":
        return lines_with(text, lambda line: "MemTotal" in line)
    if name == "status":
        return lines_with(text, lambda line: line.startswith(("Cpus_allowed_list", "Mems_allowed_list")))
    if name == "mountinfo":
        return lines_with(text, lambda line: " - cgroup" in line)
    if name == "memory.stat":
        return lines_with(text, lambda line: line.startswith("hierarchical_memory_limit "))
    return text


def cgroup_directories(mountinfo: str, cgroups: str) -> Iterable[str]:
    """Every place where a group of this process could lie: each piece of each path, below each mount."""
    points = [line.split(" ")[4] for line in mountinfo.splitlines() if " - cgroup" in line]
    points = points or ["/sys/fs/cgroup", *(f"/sys/fs/cgroup/{name}" for name in ("cpu", "cpuset", "memory"))]
    for point in points:
        for line in cgroups.splitlines() or ["0::/"]:
            parts = [part for part in line.split(":", 2)[-1].split("/") if part not in ("", "..")]
            for start in range(len(parts) + 1):
                for end in range(start, len(parts) + 1):
                    yield os.path.join(point, *parts[start:end])


class Renumber:
    """Container and pod ids, in paths and contents alike, become 1, 2, ... of the same length."""

    # A UUID may follow letters that are hexadecimal digits too, as in "pod1b4e28ba-...".
    ID = re.compile(
        r"[0-9a-f]{8}[-_](?:[0-9a-f]{4}[-_]){3}[0-9a-f]{12}(?![0-9a-f])"
        r"|(?<![0-9a-f])[0-9a-f]{12,}(?![0-9a-f])"
    )

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        return self.ID.sub(
            lambda match: self.known.setdefault(match[0], f"{len(self.known) + 1:0{len(match[0])}d}"), text
        )


def capture() -> dict[str, str]:
    """Path -> content, sorted by path."""
    paths = [path for pattern in PATTERNS for path in glob.glob(pattern)]
    found = {path: shorten(path, text) for path in paths if (text := read(path)) is not None}
    renumber = Renumber()
    cgroups, mountinfo = found.get("/proc/self/cgroup", ""), found.get("/proc/self/mountinfo", "")
    for directory in sorted(set(cgroup_directories(mountinfo, cgroups))):
        if os.path.isdir(directory):
            found[renumber(directory) + "/"] = ""
        for name in CGROUP_FILES:
            path = os.path.join(directory, name)
            text = read(path)
            if text is not None:
                found[renumber(path)] = shorten(path, text)
    for name in ("/proc/self/cgroup", "/proc/self/mountinfo"):
        if name in found:
            found[name] = renumber(found[name])
    for marker in MARKERS:
        if os.path.exists(marker):
            found[marker + "/" if os.path.isdir(marker) else marker] = ""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        found["/var/run/secrets/kubernetes.io/"] = ""
    found["/proc/sys/kernel/hostname"] = f"{HOSTNAME}\n"
    found.setdefault("/proc/sys/kernel/arch", f"{os.uname().machine}\n")
    return dict(sorted(found.items()))


if __name__ == "__main__":
    json.dump(capture(), sys.stdout, indent=0, ensure_ascii=True)
    sys.stdout.write("\n")
