"""Builds the sysfs, proc and cgroup files of a machine from a short specification.

Deterministic. It writes what Linux writes (which files, which of them an offline CPU lacks, trailing
newlines, padding) and shares no code with the probe, so that one cannot excuse the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """`cores`: physical cores that share one; 0 for all of a socket."""

    level: int
    type: str
    kib: int
    cores: int = 1


@dataclass(frozen=True, kw_only=True)
class CpuModel:
    """`identity`: lines of /proc/cpuinfo that say what the CPU is, in order. `flags`: flags or Features."""

    arm: bool = False
    identity: tuple[tuple[str, str], ...]
    flags: str
    caches: tuple[CacheSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One machine. Defaults are those of a bare-metal server with cgroup v2 and nothing limited."""

    model: CpuModel
    sockets: int
    cores: int  # per socket
    smt: int = 1
    nodes_per_socket: float = 1  # 0: a kernel without NUMA; below 1: sockets that share a node
    node_bytes: int
    extra_nodes: tuple[int, ...] = ()  # bytes of nodes without CPUs
    packages: tuple[int, ...] | None = None  # physical_package_id of each socket, when not 0, 1, ...
    core_ids: tuple[int, ...] | None = None  # core_id of a socket's cores, when not 0, 1, ...
    offline: tuple[int, ...] = ()
    distances: tuple[tuple[int, ...], ...] | None = None
    vendor: str = "Dell Inc."
    product: str = "PowerEdge R750"
    clocks: str = "tsc hpet acpi_pm"
    allowed_cpus: str | None = None
    allowed_nodes: str | None = None
    cgroup_path: str = "/user.slice/user-1000.slice/session-3.scope"
    cgroup_mount_root: str = "/"
    cgroup_files: tuple[tuple[str, str], ...] = ()  # under /sys/fs/cgroup
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def total_cores(self) -> int:
        return self.sockets * self.cores

    @property
    def cpus(self) -> range:
        return range(self.total_cores * self.smt)

    @property
    def online(self) -> list[int]:
        return [cpu for cpu in self.cpus if cpu not in self.offline]

    def core_of(self, cpu: int) -> int:
        """Core, counted over the machine: cores first, then their siblings in the same order."""
        return cpu % self.total_cores

    def socket_of(self, cpu: int) -> int:
        return self.core_of(cpu) // self.cores

    def package_of(self, cpu: int) -> int:
        socket = self.socket_of(cpu)
        return socket if self.packages is None else self.packages[socket]

    def core_id(self, cpu: int) -> int:
        within = self.core_of(cpu) % self.cores
        return within if self.core_ids is None else self.core_ids[within]

    def sharing(self, cpu: int, cores: int) -> list[int]:
        """Online CPUs of the group of `cores` neighbouring cores (0: a socket) that holds `cpu`."""
        cores = cores or self.cores
        first = self.core_of(cpu) // cores * cores
        threads = range(0, len(self.cpus), self.total_cores)
        group = [core + thread for thread in threads for core in range(first, first + cores)]
        return [other for other in group if other not in self.offline]

    @property
    def cpu_nodes(self) -> int:
        return max(1, int(self.sockets * self.nodes_per_socket))

    def node_of(self, cpu: int) -> int:
        return self.core_of(cpu) * self.cpu_nodes // self.total_cores


def ranges(cpus: Iterable[int]) -> str:
    """The kernel's list format, with its newline."""
    cpus, parts = sorted(cpus), []
    start = 0
    for i in range(1, len(cpus) + 1):
        if i == len(cpus) or cpus[i] != cpus[i - 1] + 1:
            parts.append(f"{cpus[start]}" if start == i - 1 else f"{cpus[start]}-{cpus[i - 1]}")
            start = i
    return ",".join(parts) + "\n"


def build(spec: Spec) -> dict[str, str]:
    """Path -> content of every file, sorted by path."""
    files = {
        **_cpu_files(spec),
        **_node_files(spec),
        **_proc_files(spec),
        **_cgroup_files(spec),
        "/sys/class/dmi/id/sys_vendor": f"{spec.vendor}\n",
        "/sys/class/dmi/id/product_name": f"{spec.product}\n",
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": f"{spec.clocks} \n",
        **dict(spec.extra),
    }
    return dict(sorted(files.items()))


def _cpu_files(spec: Spec) -> dict[str, str]:
    top = "/sys/devices/system/cpu"
    files = {
        f"{top}/online": ranges(spec.online),
        f"{top}/offline": ranges(spec.offline),
        f"{top}/present": ranges(spec.cpus),
        f"{top}/possible": ranges(spec.cpus),
    }
    for cpu in spec.cpus:
        here = f"{top}/cpu{cpu}"
        if cpu != 0 or spec.model.arm:  # x86 does not let go of CPU 0, and gives it no such file
            files[f"{here}/online"] = f"{int(cpu not in spec.offline)}\n"
        if cpu in spec.offline:  # nor has an offline CPU a topology or caches
            continue
        siblings = ranges(spec.sharing(cpu, 1))
        files |= {
            f"{here}/topology/physical_package_id": f"{spec.package_of(cpu)}\n",
            f"{here}/topology/core_id": f"{spec.core_id(cpu)}\n",
            f"{here}/topology/die_id": "0\n",
            f"{here}/topology/core_cpus_list": siblings,
            f"{here}/topology/thread_siblings_list": siblings,
            f"{here}/topology/package_cpus_list": ranges(spec.sharing(cpu, 0)),
        }
        for i, cache in enumerate(spec.model.caches):
            files |= {
                f"{here}/cache/index{i}/level": f"{cache.level}\n",
                f"{here}/cache/index{i}/type": f"{cache.type}\n",
                f"{here}/cache/index{i}/size": f"{cache.kib}K\n",
                f"{here}/cache/index{i}/shared_cpu_list": ranges(spec.sharing(cpu, cache.cores)),
            }
    return files


def _node_files(spec: Spec) -> dict[str, str]:
    if spec.nodes_per_socket == 0:
        return {}
    top = "/sys/devices/system/node"
    sizes = [spec.node_bytes] * spec.cpu_nodes + list(spec.extra_nodes)
    files = {f"{top}/online": ranges(range(len(sizes))), f"{top}/possible": ranges(range(len(sizes)))}
    for node, size in enumerate(sizes):
        cpus = [cpu for cpu in spec.online if spec.node_of(cpu) == node] if node < spec.cpu_nodes else []
        row = spec.distances[node] if spec.distances else [10 if i == node else 21 for i in range(len(sizes))]
        used = size // 50
        files |= {
            f"{top}/node{node}/cpulist": ranges(cpus),
            f"{top}/node{node}/distance": " ".join(map(str, row)) + "\n",
            f"{top}/node{node}/meminfo": f"Node {node} MemTotal:       {size // KIB} kB\n"
            f"Node {node} MemFree:        {(size - used) // KIB} kB\n"
            f"Node {node} MemUsed:        {used // KIB} kB\n",
        }
    return files


def _proc_files(spec: Spec) -> dict[str, str]:
    memory = spec.node_bytes * spec.cpu_nodes + sum(spec.extra_nodes)
    blocks = (_cpuinfo_arm(spec, cpu) if spec.model.arm else _cpuinfo_x86(spec, cpu) for cpu in spec.online)
    nodes = spec.cpu_nodes + len(spec.extra_nodes)
    return {
        "/proc/cpuinfo": "".join(blocks),
        "/proc/meminfo": f"MemTotal:       {memory // KIB} kB\nMemFree:        {memory // 2 // KIB} kB\n",
        # The mask of a process that nobody narrowed holds offline CPUs too.
        "/proc/self/status": "Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nPid:\t4242\nThreads:\t1\n"
        f"Cpus_allowed_list:\t{spec.allowed_cpus or ranges(spec.cpus).strip()}\n"
        f"Mems_allowed_list:\t{spec.allowed_nodes or ranges(range(nodes)).strip()}\n"
        "voluntary_ctxt_switches:\t11\n",
        "/proc/sys/kernel/hostname": "captured\n",
        "/proc/sys/kernel/arch": "aarch64\n" if spec.model.arm else "x86_64\n",
    }


def _cpuinfo_x86(spec: Spec, cpu: int) -> str:
    package = [other for other in spec.online if spec.package_of(other) == spec.package_of(cpu)]
    cores = {spec.core_of(other) for other in package}
    lines = [
        ("processor", f"{cpu}"),
        *spec.model.identity,
        ("physical id", f"{spec.package_of(cpu)}"),
        ("siblings", f"{len(package)}"),
        ("core id", f"{spec.core_id(cpu)}"),
        ("cpu cores", f"{len(cores)}"),
        ("fpu", "yes"),
        ("flags", spec.model.flags),
        ("clflush size", "64"),
        ("power management", ""),
    ]
    return "".join(f"{key:<16}: {value}".replace(" " * 9, "\t") + "\n" for key, value in lines) + "\n"


def _cpuinfo_arm(spec: Spec, cpu: int) -> str:
    lines = [
        ("processor", f"{cpu}"),
        ("BogoMIPS", "50.00"),
        ("Features", spec.model.flags),
        *spec.model.identity,
    ]
    return "".join(f"{key}\t: {value}\n" for key, value in lines) + "\n"


def _cgroup_files(spec: Spec) -> dict[str, str]:
    root = spec.cgroup_mount_root
    return {
        "/proc/self/cgroup": f"0::{spec.cgroup_path}\n",
        "/proc/self/mountinfo": "22 27 0:21 / /proc rw,nosuid,nodev,noexec shared:12 - proc proc rw\n"
        "23 27 0:22 / /sys rw,nosuid,nodev,noexec shared:2 - sysfs sysfs rw\n"
        "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        f"31 23 0:26 {root} /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
        **{f"/sys/fs/cgroup/{path}": content for path, content in spec.cgroup_files},
    }
