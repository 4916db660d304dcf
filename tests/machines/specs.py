"""The machines that were not captured but specified, by name. See build.py for what the fields mean."""

from __future__ import annotations

from tests.machines.build import GIB, CacheSpec, CpuModel, Spec

_X86 = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht "
    "syscall nx pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid pni pclmulqdq ssse3 "
    "fma cx16 sse4_1 sse4_2 x2apic movbe popcnt aes xsave avx f16c rdrand lahf_lm abm 3dnowprefetch fsgsbase "
    "bmi1 avx2 smep bmi2 erms invpcid rdseed adx smap clflushopt xsaveopt xsavec xgetbv1 xsaves "
)
_AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl "
_ICE_LAKE = (
    _X86
    + _AVX512
    + "avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes "
)
_SAPPHIRE_RAPIDS = (
    _ICE_LAKE
    + "avx_vnni avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8 cldemote movdiri movdir64b enqcmd"
)


def _intel(model: int, stepping: int, name: str, mhz: str) -> tuple[tuple[str, str], ...]:
    return (
        ("vendor_id", "GenuineIntel"),
        ("cpu family", "6"),
        ("model", f"{model}"),
        ("model name", name),
        ("stepping", f"{stepping}"),
        ("cpu MHz", mhz),
    )


def _caches(l1d: int, l1i: int, l2: int, l3: int | None, l3_cores: int = 0) -> tuple[CacheSpec, ...]:
    caches = (
        CacheSpec(level=1, type="Data", kib=l1d),
        CacheSpec(level=1, type="Instruction", kib=l1i),
        CacheSpec(level=2, type="Unified", kib=l2),
    )
    return caches if l3 is None else (*caches, CacheSpec(level=3, type="Unified", kib=l3, cores=l3_cores))


XEON_8260 = CpuModel(
    identity=_intel(85, 7, "Intel(R) Xeon(R) Platinum 8260 CPU @ 2.40GHz", "2400.000"),
    flags=_X86 + _AVX512 + "avx512_vnni",
    caches=_caches(32, 32, 1024, 36608),
)
XEON_8280L = CpuModel(
    identity=_intel(85, 7, "Intel(R) Xeon(R) Platinum 8280L CPU @ 2.70GHz", "2700.000"),
    flags=_X86 + _AVX512 + "avx512_vnni",
    caches=_caches(32, 32, 1024, 39424),
)
XEON_6326 = CpuModel(
    identity=_intel(106, 6, "Intel(R) Xeon(R) Gold 6326 CPU @ 2.90GHz", "2900.000"),
    flags=_ICE_LAKE,
    caches=_caches(48, 32, 1280, 24576),
)
XEON_8480 = CpuModel(
    identity=_intel(143, 8, "Intel(R) Xeon(R) Platinum 8480+", "2000.000"),
    flags=_SAPPHIRE_RAPIDS,
    caches=_caches(48, 32, 2048, 107520),
)
XEON_8562Y = CpuModel(
    identity=_intel(207, 2, "INTEL(R) XEON(R) PLATINUM 8562Y+", "2800.000"),
    flags=_SAPPHIRE_RAPIDS,
    caches=_caches(48, 32, 2048, 61440),
)
XEON_QEMU = CpuModel(
    identity=_intel(106, 6, "Intel Xeon Processor (Icelake)", "2593.906"),
    flags=_ICE_LAKE + "hypervisor",
    caches=_caches(32, 32, 4096, 16384),
)
XEON_E5 = CpuModel(
    identity=_intel(79, 1, "Intel(R) Xeon(R) CPU E5-2620 v4 @ 2.10GHz", "2100.000"),
    flags=_X86,
    caches=_caches(32, 32, 256, 20480),
)
EPYC_9965 = CpuModel(
    identity=(
        ("vendor_id", "AuthenticAMD"),
        ("cpu family", "26"),
        ("model", "17"),
        ("model name", "AMD EPYC 9965 192-Core Processor"),
        ("stepping", "0"),
        ("cpu MHz", "2250.000"),
    ),
    flags=_ICE_LAKE + "avx_vnni avx512_bf16 avx512_vp2intersect movdiri movdir64b",
    caches=_caches(48, 32, 1024, 32768, l3_cores=16),
)
_ARM_BASE = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
)
NEOVERSE_N1 = CpuModel(
    arm=True,
    identity=(
        ("CPU implementer", "0x41"),
        ("CPU architecture", "8"),
        ("CPU variant", "0x3"),
        ("CPU part", "0xd0c"),
        ("CPU revision", "1"),
    ),
    flags=_ARM_BASE,
    caches=_caches(64, 64, 1024, None),  # the system-level cache is not in sysfs
)
NEOVERSE_V1 = CpuModel(
    arm=True,
    identity=(
        ("CPU implementer", "0x41"),
        ("CPU architecture", "8"),
        ("CPU variant", "0x1"),
        ("CPU part", "0xd40"),
        ("CPU revision", "1"),
    ),
    flags=f"{_ARM_BASE} jscvt fcma sha3 sm3 sm4 sha512 sve asimdfhm dit uscat ilrcpc flagm paca pacg dcpodp "
    "svei8mm svebf16 i8mm bf16 dgh rng",
    caches=_caches(64, 64, 1024, 32768),
)

_POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01.slice/cri-containerd-0001.scope"


def _pod_host(
    *,
    limits: tuple[tuple[str, str], ...],
    cgroup_path: str,
    cpus: str | None = None,
    nodes: str | None = None,
) -> Spec:
    """A container on a host of 2 sockets x 192 cores with SMT."""
    return Spec(
        model=EPYC_9965,
        sockets=2,
        cores=192,
        smt=2,
        node_bytes=768 * GIB,
        distances=((10, 32), (32, 10)),
        vendor="Supermicro",
        product="AS -2126HS-TN",
        allowed_cpus=cpus,
        allowed_nodes=nodes,
        # A container sees its own group at the top of the mount, whatever its path is called.
        cgroup_path=cgroup_path,
        cgroup_mount_root=cgroup_path,
        cgroup_files=(
            ("memory.max", f"{32 * GIB}\n"),
            ("cpuset.cpus.effective", f"{cpus or '0-767'}\n"),
            ("cpuset.mems.effective", f"{nodes or '0-1'}\n"),
            *limits,
        ),
        extra=(("/var/run/secrets/kubernetes.io/serviceaccount/", ""),) if cgroup_path == "/" else (),
    )


SPECS = {
    "xeon-2x24": Spec(
        model=XEON_8260,
        sockets=2,
        cores=24,
        smt=2,
        # 24 of a die's 28 places, the same ones in both sockets
        core_ids=(*range(7), *range(8, 15), *range(16, 22), *range(24, 28)),
        node_bytes=192 * GIB,
        product="PowerEdge R640",
    ),
    "xeon-2x56-snc4": Spec(
        model=XEON_8480,
        sockets=2,
        cores=56,
        smt=2,
        nodes_per_socket=4,
        node_bytes=64 * GIB,
        distances=tuple(
            tuple(10 if a == b else 12 if a // 4 == b // 4 else 21 for b in range(8)) for a in range(8)
        ),
        product="PowerEdge R760",
    ),
    "xeon-8x28": Spec(
        model=XEON_8280L,
        sockets=8,
        cores=28,
        smt=2,
        core_ids=(*range(7), *range(8, 15), *range(16, 23), *range(24, 31)),
        node_bytes=768 * GIB,
        vendor="HPE",
        product="Superdome Flex",
    ),
    "pod-8-of-384-quota": _pod_host(limits=(("cpu.max", "800000 100000\n"),), cgroup_path=_POD),
    "pod-8-of-384-cpuset": _pod_host(
        limits=(("cpu.max", "max 100000\n"),), cgroup_path="/", cpus="200-207", nodes="1"
    ),
    "pod-8-of-384-cpuset-smt": _pod_host(
        limits=(("cpu.max", "800000 100000\n"),), cgroup_path="/", cpus="8-11,392-395"
    ),
    "xeon-2x16-offline": Spec(
        model=XEON_6326,
        sockets=2,
        cores=16,
        smt=2,
        node_bytes=128 * GIB,
        # 35: the sibling of 3. 5: a first thread, whose sibling 37 stays. 20 and 52: a whole core.
        offline=(5, 20, 35, 52),
    ),
    "arm-1x80": Spec(
        model=NEOVERSE_N1,
        sockets=1,
        cores=80,
        packages=(36,),  # firmware's offset into a table, as these machines report
        node_bytes=256 * GIB,
        vendor="GIGABYTE",
        product="R152-P30-00",
        clocks="arch_sys_counter",
    ),
    "graviton3-64": Spec(
        model=NEOVERSE_V1,
        sockets=1,
        cores=64,
        node_bytes=128 * GIB,
        vendor="Amazon EC2",
        product="c7g.16xlarge",
        clocks="arch_sys_counter",
    ),
    "vm-16-sockets": Spec(
        model=XEON_QEMU,
        sockets=16,
        cores=1,
        nodes_per_socket=1 / 16,
        node_bytes=64 * GIB,
        vendor="QEMU",
        product="Standard PC (Q35 + ICH9, 2009)",
        clocks="kvm-clock tsc hpet acpi_pm",
    ),
    "xeon-2x32-cxl": Spec(
        model=XEON_8562Y,
        sockets=2,
        cores=32,
        smt=2,
        node_bytes=256 * GIB,
        extra_nodes=(128 * GIB,),
        distances=((10, 21, 14), (21, 10, 24), (14, 24, 10)),
        product="PowerEdge R760",
    ),
    "xeon-2x8-no-numa": Spec(
        model=XEON_E5,
        sockets=2,
        cores=8,
        smt=2,
        nodes_per_socket=0,
        node_bytes=64 * GIB,
        product="PowerEdge R430",
    ),
}
