"""/proc/cpuinfo on x86, Arm, POWER and in pieces."""

from __future__ import annotations

import pytest

from plough.topology.cpuinfo import find_isa, parse_cpuinfo

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R)   Gold 6326 CPU @ 2.90GHz
physical id\t: 0
siblings\t: 4
core id\t\t: 1
cpu cores\t: 2
flags\t\t: fpu lm avx2 avx512f avx512bw avx512dq avx512vl amx_tile amx_bf16
power management:

processor\t: 7
physical id\t: 1
core id\t\t: 1
flags\t\t: fpu lm avx2 avx512f
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd sve i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
"""
OLD_ARM = """Processor\t: AArch64 Processor rev 1 (aarch64)
processor\t: 0
processor\t: 1
Features\t: fp asimd
CPU implementer\t: 0x50
CPU architecture: AArch64
CPU part\t: 0x000

Hardware\t: APM X-Gene
"""
POWER = """processor\t: 0
cpu\t\t: POWER9, altivec supported
clock\t\t: 3800MHz

processor\t: 4
cpu\t\t: POWER9
"""


def test_x86() -> None:
    info = parse_cpuinfo(X86)
    assert sorted(info.cpus) == [0, 7]
    assert info.model_name == "Intel(R) Xeon(R) Gold 6326 CPU @ 2.90GHz"
    assert info.architecture == "x86_64"
    assert (info.number(7, "physical id"), info.number(7, "core id"), info.number(7, "siblings")) == (
        1,
        1,
        None,
    )


def test_an_instruction_set_counts_only_if_every_cpu_has_it() -> None:
    assert find_isa(parse_cpuinfo(X86)) == ("avx2",)
    first = X86.partition("\n\n")[0]
    assert find_isa(parse_cpuinfo(first)) == ("amx_bf16", "avx2", "avx512")


def test_avx512_needs_all_four_and_amx_its_tiles() -> None:
    flags = "flags : lm avx512f avx512bw avx512dq avx512_bf16 avx512_fp16 amx_int8 amx_bf16"
    assert find_isa(parse_cpuinfo(f"processor : 0\n{flags}\n")) == ("avx512_bf16", "avx512_fp16")


def test_arm() -> None:
    info = parse_cpuinfo(ARM)
    assert info.model_name == "Arm Neoverse-V1"
    assert info.architecture == "aarch64"
    assert find_isa(info) == ("arm_bf16", "arm_i8mm", "neon", "sve")


def test_old_and_unknown_arm() -> None:
    info = parse_cpuinfo(OLD_ARM)
    assert sorted(info.cpus) == [0, 1]
    assert info.model_name == "Arm implementer 0x50 part 0x000"
    assert find_isa(info) == ("neon",)


def test_power() -> None:
    info = parse_cpuinfo(POWER)
    assert sorted(info.cpus) == [0, 4]
    assert info.model_name == "POWER9, altivec supported"
    assert find_isa(info) == ()


@pytest.mark.parametrize(
    "text",
    ["", "\0\0\0", "no colons here", ":::\n:\n", "processor : x\n", f"processor : {'9' * 30}\nflags : lm\n"],
)
def test_nonsense_is_an_empty_answer(text: str) -> None:
    info = parse_cpuinfo(text)
    assert not info.cpus
    assert info.model_name == "unknown"
    assert info.architecture == "unknown"
    assert find_isa(info) == ()


def test_garbled_arm_ids_are_shown_as_they_are() -> None:
    text = "processor : 0\nCPU implementer : ?\nCPU part : 0xd0c\n"
    assert parse_cpuinfo(text).model_name == "Arm implementer ? part 0xd0c"
