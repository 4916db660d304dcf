"""What is really in force in this process: affinity, threads, OpenMP runtime, allocator, memory policy.

Looks at the process itself, never at environment variables: those say what was asked for. Compares with
the contract and raises where they differ. Imports torch only where a question is about torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import time
from pathlib import Path

from plough.contract import Contract, MemoryPolicy, WorkerIdentity
from plough.errors import ContractError
from plough.report import RankFacts

__all__ = [
    "check_before_torch",
    "check_threads",
    "collect_facts",
    "identity_of_this_process",
    "library_behind",
    "memory_in_force",
]

_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "riscv64": 236, "ppc64le": 260}
_MODES = {0: "first touch", 1: "preferred", 2: "bound", 3: "interleaved", 4: "local", 5: "preferred (many)"}


def check_before_torch(contract: Contract) -> None:
    """Affinity, preloads and memory policy, before OpenMP binds the main thread to its first place.

    Raises ContractError naming what differs from the plan.
    """
    rank = contract.identity.rank
    if contract.cpus and not any(
        "could not be bound" in p and p.startswith("cores") for p in contract.problems
    ):
        found = os.sched_getaffinity(0)
        if found != set(contract.cpus):
            raise ContractError(
                f"rank {rank} was planned for cores {_join(contract.cpus)}; it is on {_join(sorted(found))}",
                hint="something between `plough exec` and Python changed the affinity: a wrapper, taskset, "
                "or a sitecustomize",
            )
    mapped = mapped_libraries()
    for path in contract.preloads:
        if not any(_same_library(path, other) for other in mapped):
            raise ContractError(
                f"rank {rank}: {path} was to be preloaded and is not loaded",
                hint="the loader refuses a library of another architecture or a missing one without an "
                "error; check it with `ldd`, or plan without it: --allocator glibc, --openmp gnu",
            )
    if contract.memory.mode == "bind" and not any("memory" in p for p in contract.problems):
        found_policy = memory_in_force()
        if not found_policy.startswith("bound"):
            raise ContractError(
                f"rank {rank}: memory was to be bound to node {_join(contract.memory.nodes)}; "
                f"the policy in force is {found_policy}",
                hint="use --memory first-touch if this system forbids memory policies",
            )


def check_threads(contract: Contract) -> tuple[str, ...]:
    """Imports torch. Raises ContractError when it computes with another number of threads than planned.

    Returns what is not as asked and yet no error: MKL never takes more threads than the machine has cores,
    so a user's own larger number comes out smaller.
    """
    import torch

    found = torch.get_num_threads()
    if found < contract.threads and contract.threads > (os.cpu_count() or 1):
        return (f"{contract.threads} threads were asked for and torch computes with {found}",)
    if found != contract.threads:
        raise ContractError(
            f"rank {contract.identity.rank} was planned for {contract.threads} threads "
            f"and torch computes with {found}",
            hint="look for torch.set_num_threads, OMP_THREAD_LIMIT or MKL_NUM_THREADS in your set-up",
        )
    return ()


def identity_of_this_process() -> WorkerIdentity:
    """Who this rank is: from its contract, else (no shim has been here) from its launcher."""
    contract = Contract.from_env(os.environ)
    return contract.identity if contract is not None else WorkerIdentity.from_env(os.environ)


def collect_facts(contract: Contract, *, started: float) -> RankFacts:
    """This rank's facts so far; training ones are filled in by the guard."""
    import torch

    return RankFacts(
        rank=contract.identity.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        world_size=1,
        backend=None,
        device=contract.device,
        threads=torch.get_num_threads(),
        cpus=tuple(sorted(affinity_of_all_threads())) if contract.cpus else (),
        openmp=_openmp(library_behind("GOMP_parallel")),
        allocator=_allocator(library_behind("malloc")),
        memory=memory_in_force(),
        seconds=time.monotonic() - started,
        problems=contract.problems,
    )


def affinity_of_all_threads() -> set[int]:
    """CPUs any thread of this process may run on. OpenMP narrows single threads, so one is not enough."""
    cpus: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            cpus |= os.sched_getaffinity(int(task.name))
        except OSError:
            continue  # the thread has ended meanwhile
    return cpus


def mapped_libraries() -> set[str]:
    """Files mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}


def library_behind(symbol: str) -> str | None:
    """The file whose `symbol` answers when any library of this process calls it; None if none has it.

    Names the first in the global search order, which is what LD_PRELOAD changes.
    """

    class DlInfo(ctypes.Structure):
        _fields_ = (
            ("fname", ctypes.c_char_p),
            ("fbase", ctypes.c_void_p),
            ("sname", ctypes.c_char_p),
            ("saddr", ctypes.c_void_p),
        )

    libc = ctypes.CDLL(None)
    try:
        address = ctypes.cast(getattr(libc, symbol), ctypes.c_void_p)
        dladdr = libc.dladdr
    except AttributeError:
        return None
    info = DlInfo()
    if not dladdr(address, ctypes.byref(info)) or info.fname is None:
        return None
    return os.fsdecode(info.fname)


def memory_in_force() -> str:
    """The calling thread's NUMA memory policy, in words."""
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return "unknown"
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, ctypes.byref(mode), mask, len(mask) * 64 + 1, None, 0) != 0:
        return f"unknown ({os.strerror(ctypes.get_errno())})"
    nodes = [i for i in range(len(mask) * 64) if mask[i // 64] >> (i % 64) & 1]
    words = _MODES.get(mode.value & 0xFF, f"mode {mode.value}")
    return (
        words if not nodes else str(MemoryPolicy(mode="bind", nodes=tuple(nodes))).replace("bind", words, 1)
    )


def _openmp(path: str | None) -> str:
    if path is None:
        # torch's own copy is not in the global scope; say what it is from the mapped files.
        path = next((p for p in sorted(mapped_libraries()) if "gomp" in p or "omp" in Path(p).name), None)
    if path is None:
        return "none"
    name = Path(path).name
    kind = "Intel" if "iomp" in name else "GNU" if "gomp" in name else "LLVM" if "libomp" in name else "?"
    return f"{kind} ({name})"


def _allocator(path: str | None) -> str:
    name = Path(path).name if path else "unknown"
    for part in ("tcmalloc", "jemalloc", "mimalloc"):
        if part in name:
            return part
    if "libc.so" not in name and "libc-" not in name:
        return name
    tuned = os.environ.get("MALLOC_TOP_PAD_")
    return "glibc, tuned" if tuned else "glibc"


def _same_library(planned: str, mapped: str) -> bool:
    return planned == mapped or os.path.realpath(planned) == mapped


def _join(numbers: object) -> str:
    return ",".join(map(str, numbers))  # type: ignore[call-overload]
