"""What a machine is, as frozen data: the cores, memory and limits a process here may use.

Knows nothing of how it was found out (`probe.py`) and nothing of what to do with it (`plough.plan`).
JSON in both directions, unknown keys refused, so that a machine captured elsewhere can be planned for.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from plough.errors import MachineError

__all__ = ["Cache", "Core", "Limits", "Machine", "Node", "Software"]


class Core(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A physical core with at least one online logical CPU.

    `cpus` are its online logical CPUs (SMT siblings), lowest first; only the first is ever planned for.
    """

    socket: int
    node: int
    cpus: tuple[int, ...]


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node. A node of memory without cores (CXL, HBM) has cores nowhere in `Machine.cores`."""

    id: int
    memory_bytes: int | None = None


class Cache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of cache: `instances` of `size_bytes` each, shared by `cpus_per_instance` logical CPUs."""

    level: int
    type: str
    size_bytes: int
    instances: int
    cpus_per_instance: int


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the calling process may use of the machine.

    cpus: logical CPUs in its affinity mask (cpuset included), online ones only.
    cpuset: logical CPUs its cgroup cpuset allows, which a narrower affinity mask may be widened to.
    quota_cpus: CPU time per wall time from the cgroup quota, in CPUs; None when unlimited.
    memory_bytes: the cgroup memory limit; None when unlimited.
    nodes: NUMA nodes memory may come from.
    cgroup: "v1", "v2" or None when no cgroup could be read.
    """

    cpus: tuple[int, ...]
    cpuset: tuple[int, ...]
    nodes: tuple[int, ...]
    quota_cpus: float | None = None
    memory_bytes: int | None = None
    cgroup: str | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shared libraries a plan may preload, and launchers it may use: absolute paths, None when absent."""

    tcmalloc: str | None = None
    jemalloc: str | None = None
    intel_openmp: str | None = None
    mpirun: str | None = None
    mpi_flavour: str | None = None  # "intel", "mpich" or "openmpi"


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host as a process on it sees it.

    cores: sorted by (socket, node, first cpu); offline CPUs appear nowhere.
    isa: of "avx2", "avx512", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8" on x86-64;
        of "neon", "sve", "arm_bf16", "arm_i8mm" on Arm; sorted.
    hypervisor: "kvm", "xen", ... or None on bare metal or when unknown.
    container: "docker", "kubernetes", "podman", ... or None.
    """

    hostname: str
    architecture: str
    model_name: str
    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    limits: Limits
    memory_bytes: int
    caches: tuple[Cache, ...] = ()
    isa: tuple[str, ...] = ()
    hypervisor: str | None = None
    container: str | None = None
    software: Software = Software()

    @property
    def sockets(self) -> tuple[int, ...]:
        """Socket (physical package) ids that have online cores, ascending."""
        return tuple(sorted({core.socket for core in self.cores}))

    def to_json(self) -> str:
        """The machine as indented JSON, which `from_json` reads back to an equal value."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "machine JSON") -> Machine:
        """Read what `to_json` wrote.

        Raises MachineError naming `source` and the item at fault.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise MachineError(
                f"{source} does not describe a machine: {error}",
                hint="write one with `plough probe --json > machine.json` on the machine in question",
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """Read a captured machine file. Raises MachineError when it cannot be read or is not one."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise MachineError(f"{path}: {error.strerror or error}") from error
        return cls.from_json(text, source=str(path))
