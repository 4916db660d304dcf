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
ALLOCATORS = ("malloc", "hoard")
OPENMP = ("libiomp5", "libomp", "libgomp")
THREADS = (Env.OMP_NUM_THREADS, Env.MKL_NUM_THREADS)
BINDING = (Env.OMP_PROC_BIND, Env.OMP_PLACES, Env.GOMP_CPU_AFFINITY, Env.KMP_AFFINITY)

WATCHED = (
    *THREADS,
    *BINDING,
    Env.KMP_BLOCKTIME,
    Env.LD_PRELOAD,
    *GLIBC_MALLOC,
    Env.MALLOC_CONF,
    Env.TCMALLOC_LARGE_ALLOC,
    Env.CCL_WORKER_COUNT,
    Env.CCL_WORKER_AFFINITY,
    Env.PLOUGH_BUCKET_MB,
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

    def value(self, name: str) -> str:
        """What `name` was set to by the last `add`."""
        return next(item.value for item in reversed(self.items) if item.name == name)

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
    threads = _threads(settings, request, share, warnings)
    # ld.so takes colons and blanks.
    own = settings.user.pop(Env.LD_PRELOAD, "").replace(":", " ").split()
    preloads = _preloads(machine.software, request, own)
    _openmp(settings, share, threads, intel=_holds((*own, *preloads), "libiomp5"))
    if request.allocator != "none":
        _allocator(settings, (*own, *preloads))
    if own or preloads:
        found = " and ".join(_library_name(path) for path in preloads)
        why = "set by you; kept" if not found else f"{found} found here" + (", after yours" if own else "")
        settings.add(Env.LD_PRELOAD, ":".join(dict.fromkeys((*own, *preloads))), why)
    if len(shares) + request.other_ranks > 1 or hosts > 1:
        _communication(settings, request, shares, hosts)
    return RankEnvironment(
        threads=threads, preloads=preloads, settings=tuple(settings.items), warnings=tuple(warnings)
    )


def _threads(settings: _Settings, request: PlanRequest, share: Share, warnings: list[str]) -> int:
    """The number of threads in force: the user's if they set one, else the share's."""
    given = {name: settings.user[name] for name in THREADS if name in settings.user}
    numbers = {name: _positive(name, text) for name, text in given.items()}
    if len(set(numbers.values())) > 1:
        # torch starts from MKL's number where it is built with MKL, whatever OMP_NUM_THREADS says.
        raise PlanError(
            " and ".join(f"{name}={text}" for name, text in given.items()) + " contradict each other",
            hint=f"unset {Env.MKL_NUM_THREADS}, or set both to the same number",
        )
    if not numbers:
        why = "one compute thread per core of the rank" if request.threads is None else "as asked"
        if request.tuned is not None and request.tuned.reserve_cores is not None:
            why += f"; {request.tuned.why}"
        settings.add(Env.OMP_NUM_THREADS, str(share.threads), why)
        return share.threads
    name, threads = next(iter(numbers.items()))
    settings.add(Env.OMP_NUM_THREADS, str(threads), f"as {name}, set by you")
    settings.keep(Env.MKL_NUM_THREADS)
    set_to = f"{name}={given[name]}"
    if request.threads is not None:
        if request.threads != threads:
            raise PlanError(
                f"--threads {request.threads} and {set_to} contradict each other",
                hint=f"unset {name}, or leave --threads out",
            )
        return threads
    cores = len(share.cpus) or share.threads
    if threads > cores:
        warnings.append(
            f"{set_to} on {cores} core{'s' * (cores > 1)} per rank: threads take turns on a core, "
            f"and each step waits for the slowest; {share.threads} would be right here"
        )
    elif 2 * threads <= cores:
        warnings.append(
            f"{set_to} leaves {cores - threads} of {cores} cores per rank idle; "
            f"{share.threads} would be right here"
        )
    return threads


def _positive(name: str, text: str) -> int:
    try:
        # OMP_NUM_THREADS may be a list, one entry per nesting level; the first is the one that counts.
        number = int(text.split(",")[0])
        if number < 1:
            raise ValueError
    except ValueError:
        raise PlanError(
            f"{name}={text!r} is not a positive whole number", hint="unset it, or set it to one"
        ) from None
    return number


def _preloads(software: Software, request: PlanRequest, own: list[str]) -> tuple[str, ...]:
    chosen = [_pick_allocator(software, request.allocator, own), _pick_openmp(software, request.openmp, own)]
    return tuple(path for path in chosen if path is not None)


def _pick_allocator(software: Software, wanted: str, own: list[str]) -> str | None:
    if wanted not in ("auto", "tcmalloc", "jemalloc", "glibc", "none"):
        raise PlanError(f"--allocator {wanted}: unknown", hint="one of auto, tcmalloc, jemalloc, glibc, none")
    theirs = next((path for path in own if _holds([path], *ALLOCATORS)), None)
    if theirs is not None:
        # Two allocators in one process: the first answers, the other's settings would be for nothing.
        if wanted in ("auto", "none") or wanted in _file_name(theirs):
            return None
        raise PlanError(
            f"--allocator {wanted} and LD_PRELOAD={theirs} contradict each other",
            hint="take it out of LD_PRELOAD, or leave --allocator out",
        )
    if wanted == "auto":
        return software.tcmalloc or software.jemalloc
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


def _pick_openmp(software: Software, wanted: str, own: list[str]) -> str | None:
    if wanted not in ("auto", "intel", "gnu"):
        raise PlanError(f"--openmp {wanted}: unknown", hint="one of auto, intel, gnu")
    theirs = next((path for path in own if _holds([path], *OPENMP)), None)
    if theirs is not None:
        if wanted == "auto" or ("libgomp" in _file_name(theirs)) == (wanted == "gnu"):
            return None
        raise PlanError(
            f"--openmp {wanted} and LD_PRELOAD={theirs} contradict each other",
            hint="take it out of LD_PRELOAD, or leave --openmp out",
        )
    if wanted == "gnu":
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


def _allocator(settings: _Settings, preloads: Sequence[str]) -> None:
    if _holds(preloads, "tcmalloc"):
        settings.add(Env.TCMALLOC_LARGE_ALLOC, str(1 << 40), "no report for each large tensor")
    elif _holds(preloads, "jemalloc"):
        settings.add(Env.MALLOC_CONF, JEMALLOC_CONF, "freed tensors stay mapped")
    elif not settings.keep(*GLIBC_MALLOC) and not _holds(preloads, *ALLOCATORS):
        for name, value in GLIBC_MALLOC.items():
            settings.add(name, value, "freed tensors stay mapped")


def _communication(settings: _Settings, request: PlanRequest, shares: Sequence[Share], hosts: int) -> None:
    tuned = request.tuned
    if tuned is not None and tuned.ccl_worker_count is not None:
        settings.add(Env.CCL_WORKER_COUNT, str(tuned.ccl_worker_count), tuned.why)
    else:
        settings.add(Env.CCL_WORKER_COUNT, str(request.ccl_worker_count or 1), "oneCCL threads per rank")
    if tuned is not None and tuned.bucket_mb is not None:
        settings.add(Env.PLOUGH_BUCKET_MB, str(tuned.bucket_mb), tuned.why)
    else:
        settings.keep(Env.PLOUGH_BUCKET_MB)
    text = settings.value(Env.CCL_WORKER_COUNT)
    workers = range(int(text) if text.isdecimal() else 0)
    helpers = [s.helper_cpus[i % len(s.helper_cpus)] for s in shares if s.helper_cpus for i in workers]
    # oneCCL wants an entry for every worker of every rank of the host, or none at all.
    if helpers and len(helpers) == len(shares) * len(workers) and request.other_ranks == 0:
        computing = {cpu for share in shares for cpu in share.cpus[: share.threads]}
        where = "a core that computes too" if computing & set(helpers) else "cores that do not compute"
        settings.add(Env.CCL_WORKER_AFFINITY, ",".join(map(str, helpers)), where)
    else:
        settings.keep(Env.CCL_WORKER_AFFINITY)
    settings.add(Env.I_MPI_PIN, "0", "this plan places ranks, not MPI")
    if hosts == 1:
        settings.add(Env.MASTER_ADDR, "127.0.0.1", "all ranks are on this host")
        settings.add(Env.GLOO_SOCKET_IFNAME, "lo", "all ranks are on this host")
    else:
        settings.keep(Env.MASTER_ADDR, Env.GLOO_SOCKET_IFNAME)
    settings.keep(Env.MASTER_PORT)


def _holds(paths: Sequence[str], *parts: str) -> bool:
    return any(part in _file_name(path) for path in paths for part in parts)


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _library_name(path: str) -> str:
    known = {"libiomp5": "Intel OpenMP", "tcmalloc": "tcmalloc", "jemalloc": "jemalloc"}
    name = _file_name(path)
    return next((title for part, title in known.items() if part in name), name)
