"""What /proc/cpuinfo says: the model's name, the instruction sets, and ids for when sysfs is silent.

The format differs by architecture and is only text; nothing here decides what a core is (`cores.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plough.topology._sysfs import MAX_ID, Tree, to_int

__all__ = ["CpuInfo", "find_isa", "parse_cpuinfo", "read_cpuinfo"]

# (implementer, part) -> name, for Arm kernels, which print no model name. From util-linux, lscpu-arm.c.
ARM_PARTS = {
    (0x41, 0xD08): "Arm Cortex-A72",
    (0x41, 0xD0C): "Arm Neoverse-N1",
    (0x41, 0xD40): "Arm Neoverse-V1",
    (0x41, 0xD49): "Arm Neoverse-N2",
    (0x41, 0xD4F): "Arm Neoverse-V2",
    (0x41, 0xD84): "Arm Neoverse-V3",
    (0x41, 0xD8E): "Arm Neoverse-N3",
    (0x43, 0x0AF): "Cavium ThunderX2-99xx",
    (0x46, 0x001): "Fujitsu A64FX",
    (0x48, 0xD01): "HiSilicon TaiShan-v110",
    (0x48, 0xD02): "HiSilicon TaiShan-v120",
    (0x6D, 0xD49): "Microsoft Azure-Cobalt-100",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}

# Plough's name -> the kernel's flags that must all be there.
ISA_FLAGS = {
    "avx2": {"avx2"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_bf16": {"avx512_bf16"},
    "avx512_fp16": {"avx512_fp16"},
    "amx_bf16": {"amx_tile", "amx_bf16"},
    "amx_int8": {"amx_tile", "amx_int8"},
}
ISA_FEATURES_ARM = {
    "neon": {"asimd"},
    "sve": {"sve"},
    "arm_bf16": {"bf16"},
    "arm_i8mm": {"i8mm"},
}


@dataclass(frozen=True, kw_only=True)
class CpuInfo:
    """`cpus`: logical CPU -> its lines. `common`: lines above the first CPU (old Arm kernels)."""

    cpus: Mapping[int, Mapping[str, str]]
    common: Mapping[str, str]

    def first(self, key: str) -> str | None:
        """The first value of `key` that is not empty, over all CPUs."""
        return next((lines[key] for lines in (*self.cpus.values(), self.common) if lines.get(key)), None)

    def number(self, cpu: int, key: str) -> int | None:
        """A CPU's id or count; None when missing or beyond any machine."""
        number = to_int(self.cpus.get(cpu, {}).get(key))
        return number if number is not None and 0 <= number <= MAX_ID else None

    @property
    def flags(self) -> frozenset[str]:
        """Flags (x86) or Features (Arm) that every CPU that lists any has."""
        lists = {lines.get("flags") or lines.get("Features") for lines in (*self.cpus.values(), self.common)}
        sets = [frozenset(text.split()) for text in lists if text]
        return frozenset.intersection(*sets) if sets else frozenset()

    @property
    def architecture(self) -> str:
        """As `uname -m` would say, as far as the text shows it; "unknown" otherwise."""
        if self.first("CPU implementer"):
            return "armv7l" if self.first("CPU architecture") == "7" else "aarch64"
        if self.first("flags"):
            return "x86_64" if "lm" in self.flags else "i686"
        return "unknown"

    @property
    def model_name(self) -> str:
        """The model's name with single spaces; "unknown" when nothing tells."""
        named = self.first("model name") or self.first("cpu")  # "cpu" is POWER's
        if named:
            return " ".join(named.split())
        implementer, part = self.first("CPU implementer"), self.first("CPU part")
        if implementer and part:
            return _arm_name(implementer, part)
        return "unknown"


def _arm_name(implementer: str, part: str) -> str:
    try:
        known = ARM_PARTS.get((int(implementer, 16), int(part, 16)))
    except ValueError:
        known = None
    return known or f"Arm implementer {implementer} part {part}"


def parse_cpuinfo(text: str) -> CpuInfo:
    """Split the text into CPUs. Lines that are not `key : value` are passed over."""
    cpus: dict[int, dict[str, str]] = {}
    common: dict[str, str] = {}
    lines = common
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        key, value = key.strip(), value.strip()
        if key == "processor" and value.isdecimal():
            number = to_int(value)
            # An impossible number gets a place to put its lines, and is otherwise forgotten.
            lines = {} if number is None or number > MAX_ID else cpus.setdefault(number, {})
        elif value:
            lines.setdefault(key, value)
    return CpuInfo(cpus=cpus, common=common)


def read_cpuinfo(tree: Tree) -> CpuInfo:
    """Read /proc/cpuinfo; without one, an empty CpuInfo."""
    return parse_cpuinfo(tree.text("/proc/cpuinfo") or "")


def find_isa(info: CpuInfo) -> tuple[str, ...]:
    """The instruction sets `Machine.isa` speaks of, sorted."""
    table = ISA_FEATURES_ARM if info.first("Features") else ISA_FLAGS
    return tuple(sorted(name for name, needed in table.items() if needed <= info.flags))
