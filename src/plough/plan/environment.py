"""Which environment variables a rank gets, each with its reason. Pure.

Knows a rank's share of cores (`binding.py`) and the software found on the machine; decides no placement.
A variable the user set is kept as it is, together with its whole family (OpenMP binding, allocator), and
warned about with numbers where it hurts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plough.contract import Env
from plough.errors import PlanError
from plough.plan.binding import Share
from plough.plan.plan import PlanRequest, Setting
from plough.topology.machine import Machine, Software

__all__ = ["WATCHED", "RankEnvironment", "rank_environment"]

GLIBC_MALLOC = {
    Env.MALLOC_MMAP_THRESHOLD: "1073741824",
    Env.MALLOC_TRIM_THRESHOLD: "4294967296",
    Env.MALLOC_TOP_PAD: "67108864",
}
JEMALLOC_CONF = (
    "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"
)
BINDING = (Env.OMP_PROC_BIND, Env.OMP_PLACES, Env.GOMP_CPU_AFFINITY, Env.KMP_AFFINITY)

WATCHED = (
    Env.OMP_NUM_THREADS,
    Env.MKL_NUM_THREADS,
    *BINDING,
    Env.KMP_BLOCKTIME,
    Env.LD_PRELOAD,
    *GLIBC_MALLOC,
    Env.MALLOC_CONF,
    Env.CCL_WORKER_COUNT,
    Env.CCL_WORKER_AFFINITY,
    Env.I_MPI_PIN,
    Env.MASTER_ADDR,
    Env.MASTER_PORT,
    Env.GLOO_SOCKET_IFNAME,
)
"""Variables whose values in the user's environment a plan must know of."""


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """threads: what OMP_NUM_THREADS really says, the user's value included."""

    threads: int
    preloads: tuple[str, ...]
    settings: tuple[Setting, ...]
    warnings: tuple[str, ...]


class _Settings:
    """Collects settings; what the user set wins and is said to be theirs."""

    def __init__(self, user: dict[str, str]) -> None:
        self.user = user
        self.items: list[Setting] = []

    def add(self, name: str, value: str, why: str) -> None:
        if name in self.user:
            value, why = self.user[name], "set by you; kept"
        self.items.append(Setting(name=name, value=value, why=why))

    def keep(self, *names: str) -> bool:
        """Take over those of a family the user set; True if there were any."""
        mine = [name for name in names if name in self.user]
        for name in mine:
            self.add(name, "", "")
        return bool(mine)


def rank_environment(
    machine: Machine, request: PlanRequest, shares: Sequence[Share], local_rank: int, *, hosts: int
) -> RankEnvironment:
    """Settings for rank `local_rank` among the `shares` of its host.

    Raises PlanError when an allocator or OpenMP runtime was asked for that the machine does not have.
    """
    share = shares[local_rank]
    settings, warnings = _Settings(dict(request.user_environment)), list[str]()
    threads = _threads(settings, share, warnings)
    preloads = _preloads(machine, request, settings)
    _openmp(settings, share, threads, intel=any("libiomp5" in path for path in preloads))
    if request.allocator != "none":
        _allocator(settings, preloads)
    if preloads:
        paths = [*filter(None, settings.user.pop(Env.LD_PRELOAD, "").split(":")), *preloads]
        found = " and ".join(_library_name(path) for path in preloads)
        settings.add(Env.LD_PRELOAD, ":".join(dict.fromkeys(paths)), f"{found} found on this machine")
    else:
        settings.keep(Env.LD_PRELOAD)
    if len(shares) * hosts > 1:
        _communication(settings, request, shares, hosts)
    return RankEnvironment(
        threads=threads, preloads=preloads, settings=tuple(settings.items), warnings=tuple(warnings)
    )


def _threads(settings: _Settings, share: Share, warnings: list[str]) -> int:
    text = settings.user.get(Env.OMP_NUM_THREADS)
    settings.add(Env.OMP_NUM_THREADS, str(share.threads), "one compute thread per core of the rank")
    if text is None:
        return share.threads
    try:
        # OMP_NUM_THREADS may be a list, one entry per nesting level; the first is the one that counts.
        threads = int(text.split(",")[0])
        if threads < 1:
            raise ValueError
    except ValueError:
        raise PlanError(
            f"OMP_NUM_THREADS={text!r} is not a positive whole number", hint="unset it, or set it to one"
        ) from None
    cores = len(share.cpus) or share.threads
    if threads > cores:
        warnings.append(
            f"OMP_NUM_THREADS={threads} on {cores} core{'s' * (cores > 1)} per rank: "
            f"{threads / cores:.3g} threads will take turns on each core; {share.threads} is right here"
        )
    elif 2 * threads <= cores:
        warnings.append(
            f"OMP_NUM_THREADS={threads} leaves {cores - threads} of {cores} cores per rank idle; "
            f"{share.threads} is right here"
        )
    return threads


def _preloads(machine: Machine, request: PlanRequest, settings: _Settings) -> tuple[str, ...]:
    software = machine.software
    own = settings.user.get(Env.LD_PRELOAD, "")
    chosen = [_pick_allocator(software, request.allocator, own), _pick_openmp(software, request.openmp, own)]
    return tuple(path for path in chosen if path is not None)


def _pick_allocator(software: Software, wanted: str, own: str) -> str | None:
    if wanted not in ("auto", "tcmalloc", "jemalloc", "glibc", "none"):
        raise PlanError(f"--allocator {wanted}: unknown", hint="one of auto, tcmalloc, jemalloc, glibc, none")
    if wanted == "auto":
        taken = any(name in own for name in ("malloc", "libhoard"))
        return None if taken else software.tcmalloc or software.jemalloc
    if wanted in ("glibc", "none"):
        return None
    path = software.tcmalloc if wanted == "tcmalloc" else software.jemalloc
    if path is None:
        package = "libtcmalloc-minimal4" if wanted == "tcmalloc" else "libjemalloc2"
        raise PlanError(
            f"--allocator {wanted}: lib{wanted} is not on this machine",
            hint=f"install it (Debian and Ubuntu: apt install {package}), or use --allocator glibc",
        )
    return path


def _pick_openmp(software: Software, wanted: str, own: str) -> str | None:
    if wanted not in ("auto", "intel", "gnu"):
        raise PlanError(f"--openmp {wanted}: unknown", hint="one of auto, intel, gnu")
    if wanted == "gnu" or "libiomp5" in own or "libomp" in own:
        return None
    if wanted == "intel" and software.intel_openmp is None:
        raise PlanError(
            "--openmp intel: libiomp5.so is not in this environment",
            hint="pip install 'plough[openmp]', or use --openmp gnu",
        )
    return software.intel_openmp


def _openmp(settings: _Settings, share: Share, threads: int, *, intel: bool) -> None:
    if settings.keep(*BINDING):
        pass
    elif not share.cpus or threads > len(share.cpus):
        reason = "ranks are not bound here" if not share.cpus else "more threads than cores"
        settings.add(Env.OMP_PROC_BIND, "false", reason)
    elif intel:
        proclist = ",".join(map(str, share.cpus))
        settings.add(
            Env.KMP_AFFINITY, f"granularity=fine,explicit,proclist=[{proclist}]", "a thread stays on its core"
        )
    else:
        settings.add(Env.OMP_PLACES, ",".join(f"{{{cpu}}}" for cpu in share.cpus), "a place per core")
        settings.add(Env.OMP_PROC_BIND, "close", "a thread stays on its core")
    if intel:
        settings.add(Env.KMP_BLOCKTIME, "1", "waiting threads sleep after 1 ms instead of 200")


def _allocator(settings: _Settings, preloads: tuple[str, ...]) -> None:
    if any("tcmalloc" in path for path in preloads):
        settings.add(Env.TCMALLOC_LARGE_ALLOC, str(1 << 40), "no report for each large tensor")
    elif any("jemalloc" in path for path in preloads):
        settings.add(Env.MALLOC_CONF, JEMALLOC_CONF, "freed tensors stay mapped")
    elif not settings.keep(*GLIBC_MALLOC) and "malloc" not in settings.user.get(Env.LD_PRELOAD, ""):
        for name, value in GLIBC_MALLOC.items():
            settings.add(name, value, "freed tensors stay mapped: no page faults each step")


def _communication(settings: _Settings, request: PlanRequest, shares: Sequence[Share], hosts: int) -> None:
    settings.add(Env.CCL_WORKER_COUNT, str(request.ccl_worker_count), "oneCCL threads per rank")
    helpers = [share.helper_cpu for share in shares for _ in range(request.ccl_worker_count)]
    if None not in helpers:
        settings.add(
            Env.CCL_WORKER_AFFINITY, ",".join(map(str, helpers)), "each rank's, beside its compute threads"
        )
    settings.add(Env.I_MPI_PIN, "0", "placement is this plan's, not MPI's")
    if hosts == 1:
        settings.add(Env.MASTER_ADDR, "127.0.0.1", "all ranks are on this host")
        settings.add(Env.GLOO_SOCKET_IFNAME, "lo", "all ranks are on this host")
    else:
        settings.keep(Env.MASTER_ADDR, Env.GLOO_SOCKET_IFNAME)
    settings.keep(Env.MASTER_PORT)


def _library_name(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    known = {"libiomp5": "Intel OpenMP", "tcmalloc": "tcmalloc", "jemalloc": "jemalloc"}
    return next((title for part, title in known.items() if part in name), name)
