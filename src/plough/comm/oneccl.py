"""oneCCL, when it is installed: where it is, what it needs in the environment, and a hand on it.

For the build of the shim `csrc/oneccl`, for the link between hosts, and for benchmarks that compare. Must
not import torch: buffers are addresses here. oneCCL reads its environment once, when the first address is
made or the first communicator opened; what `environment_for` says has to be in `os.environ` before that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from plough.contract import Env
from plough.errors import BuildError, LaunchError

__all__ = [
    "RELEASE",
    "SOURCE",
    "DType",
    "NotUsable",
    "OneCcl",
    "OneCclShim",
    "Op",
    "Span",
    "Transport",
    "compile_command",
    "environment_for",
    "find_oneccl",
    "key_parts",
    "load_problem",
    "require_oneccl",
    "span_of",
    "started_by_hydra",
]

RELEASE = "2021.16.2"
"""The release Plough is tested with. Those after it, 2021.17 and 2022, ask for a libccl.so.2 they lack."""

SOURCE = Path(__file__).parent / "csrc" / "oneccl" / "oneccl_link.cpp"

INSTALL = f"pip install 'plough[oneccl]' brings oneCCL {RELEASE}"
LIBRARY = "libccl.so.1"
HEADER = "oneapi/ccl.hpp"
MPI = "libmpi.so.12"
FABRIC = "libfabric.so.1"
LOAD_TIMEOUT_S = 60.0
ERROR_SIZE = 2048
ADDRESS_SIZE = 256
TIMED_OUT = 2


@dataclass(frozen=True)
class OneCcl:
    """A oneCCL that loads. `mpi`: Intel MPI's library, without which there is only the OFI transport."""

    version: str
    library: Path
    include: Path
    mpi: Path | None = None
    fabric: Path | None = None


@dataclass(frozen=True)
class NotUsable:
    """Why there is no oneCCL to use, and what would help; both whole texts for a user."""

    reason: str
    hint: str = INSTALL


def find_oneccl(
    *,
    distribution: Callable[[str], metadata.Distribution] = metadata.distribution,
    problem_of: Callable[[Path], str | None] | None = None,
) -> OneCcl | NotUsable:
    """The oneCCL of this Python's environment. Loads it in a process of its own, to be sure."""
    try:
        runtime = distribution("oneccl-cpu")
    except metadata.PackageNotFoundError:
        return NotUsable("oneCCL is not installed")
    library = _file_of(runtime, LIBRARY)
    if library is None:
        return NotUsable(f"oneccl-cpu {runtime.version} has no {LIBRARY}")
    problem = (problem_of or load_problem)(library)
    if problem is not None:
        return NotUsable(f"oneccl-cpu {runtime.version} does not load: {problem}")
    try:
        headers = distribution("oneccl-cpu-devel")
    except metadata.PackageNotFoundError:
        return NotUsable(f"oneccl-cpu {runtime.version} is installed without its headers, oneccl-cpu-devel")
    if headers.version != runtime.version:
        return NotUsable(f"oneccl-cpu is {runtime.version}, but oneccl-cpu-devel {headers.version}")
    header = _file_of(headers, HEADER)
    if header is None:
        return NotUsable(f"oneccl-cpu-devel {headers.version} has no {HEADER}")
    # Intel MPI is in the package of that name; an environment may also have it beside oneCCL from elsewhere.
    try:
        intel_mpi: metadata.Distribution | None = distribution("impi-rt")
    except metadata.PackageNotFoundError:
        intel_mpi = None

    def beside(name: str) -> Path | None:
        found = None if intel_mpi is None else _file_of(intel_mpi, name)
        here = library.with_name(name)
        return found or (here if here.is_file() else None)

    return OneCcl(
        version=runtime.version,
        library=library,
        include=header.parent.parent,
        mpi=beside(MPI),
        fabric=beside(FABRIC),
    )


def require_oneccl() -> OneCcl:
    """Raises LaunchError, with what to install."""
    found = find_oneccl()
    if isinstance(found, NotUsable):
        raise LaunchError(found.reason, hint=found.hint)
    return found


def _file_of(distribution: metadata.Distribution, ending: str) -> Path | None:
    """The file of a distribution whose path ends so, if it is really there."""
    for file in distribution.files or ():
        if f"/{file.as_posix()}".endswith(f"/{ending}"):
            path = Path(os.path.abspath(str(distribution.locate_file(file))))
            if path.is_file():
                return path
    return None


def load_problem(library: Path) -> str | None:
    """What the dynamic loader says against a library; None if it loads. A crash is a problem too."""
    load = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError as e: sys.exit(str(e))"
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", load, str(library)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_TIMEOUT_S,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"loading it ended a process with status {done.returncode}"


def compile_command(found: OneCcl, *, compiler: str = "g++") -> list[str]:
    """What builds the shim, once `-o FILE` is appended. It then finds this oneCCL without LD_LIBRARY_PATH."""
    return [
        compiler,
        *("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"),
        *("-isystem", str(found.include)),
        str(SOURCE),
        str(found.library),
        f"-Wl,-rpath,{found.library.parent}",
    ]


def key_parts(found: OneCcl) -> list[str | bytes]:
    """What a built shim depends on, next to its command."""
    return [found.version, SOURCE.read_bytes(), SOURCE.with_suffix(".h").read_bytes()]


class Transport(str, Enum):
    """MPI: only below Intel MPI's mpiexec, and only if *every* rank it started opens a communicator, if only
    one of its own; a rank that does not keeps the others waiting. OFI: for any ranks, however started.
    """

    MPI = "mpi"
    OFI = "ofi"


def started_by_hydra(environ: Mapping[str, str]) -> bool:
    """Whether Intel MPI's mpiexec started this very process, not a parent that passed its variables on."""
    if Env.PMI_RANK not in environ or "I_MPI_HYDRA_UUID" not in environ:
        return False
    # hydra holds the other end of this socket; a torchrun or the like in between closes ours.
    with contextlib.suppress(ValueError, OSError):
        return stat.S_ISSOCK(os.fstat(int(environ.get("PMI_FD", ""))).st_mode)
    return False


def environment_for(
    found: OneCcl,
    transport: Transport,
    *,
    local_rank: int | None = None,
    local_size: int | None = None,
    workers: bool = False,
    interface: str | None = None,
    user: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables oneCCL needs. Pure. What is in `user` already is theirs and left out.

    local_rank, local_size: among the ranks of this host *in the communicator*, which then has to be the
    only one there is. Without them oneCCL asks around; leaders of hosts must do without. The MPI transport
    takes no notice: hydra knows.
    workers: oneCCL's own threads make progress, on cores that compute nothing else. Without them whoever
    waits makes it, which is much faster where there is no core to spare.
    interface: name of the network interface to meet and, over TCP, to talk on.
    """
    if transport is Transport.MPI and found.mpi is None:
        raise LaunchError(f"oneCCL's MPI transport needs {MPI}, which is not installed", hint=INSTALL)
    where = {
        "CCL_ATL_TRANSPORT": transport.value,
        # Else it tells of every variable that is set. It still tells of this one.
        "CCL_LOG_LEVEL": "error",
        "CCL_WORKER_OFFLOAD": str(int(workers)),
    }
    if found.fabric is not None:
        where["CCL_OFI_LIBRARY_PATH"] = str(found.fabric)
        where["FI_PROVIDER_PATH"] = str(found.fabric.parent)
    if interface is not None:
        where["CCL_KVS_IFACE"] = interface
        where["FI_TCP_IFACE"] = interface
    if transport is Transport.MPI:
        where["CCL_PROCESS_LAUNCHER"] = "hydra"
        where["CCL_MPI_LIBRARY_PATH"] = str(found.mpi)
        # oneCCL sets it to 1, of which Intel MPI then warns.
        where["I_MPI_THREAD_SPLIT"] = "0"
    else:
        where["CCL_PROCESS_LAUNCHER"] = "none"
        if local_rank is not None and local_size is not None:
            where["CCL_LOCAL_RANK"] = str(local_rank)
            where["CCL_LOCAL_SIZE"] = str(local_size)
    return {name: value for name, value in where.items() if name not in (user or {})}


class Op(IntEnum):
    """What `collective` does; reductions are sums, roots are rank 0."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    REDUCE_SCATTER = 3
    ALLTOALL = 4
    REDUCE = 5
    BARRIER = 6


class DType(IntEnum):
    """Element types `collective` knows."""

    F32 = 0
    BF16 = 1


class Span(NamedTuple):
    """Memory by address, as a tensor's data_ptr gives it. Whoever makes one keeps the memory alive."""

    address: int
    size: int


NOTHING = Span(0, 0)


def span_of(buffer: bytearray) -> Span:
    """The memory of a bytearray; it must not be resized meanwhile."""
    if not buffer:
        return NOTHING
    return Span(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), len(buffer))


class OneCclShim:
    """The shim by its path: BuildError if it does not load. Methods raise LaunchError, or TimeoutError where
    they have a time limit.

    After a failed or timed-out call the handle is only good for `close`, and buffers must stay alive: oneCCL
    does not let go of them.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            # Now, not when first used, so that what is missing is said here.
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as problem:
            raise BuildError(f"the oneCCL shim does not load: {problem}", hint=INSTALL) from None
        spans, sizes = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
        error = (ctypes.c_char_p, ctypes.c_size_t)
        self._address = library.plough_oneccl_address
        self._address.argtypes = (ctypes.c_char_p, ctypes.c_size_t, sizes, *error)
        self._open = library.plough_oneccl_open
        self._open.argtypes = (
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_double, spans),
            *error,
        )
        self._exchange = library.plough_oneccl_exchange
        self._exchange.argtypes = (ctypes.c_void_p, spans, sizes, spans, sizes, ctypes.c_double, *error)
        self._collective = library.plough_oneccl_collective
        self._collective.argtypes = (
            *(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
            *error,
        )
        self._close = library.plough_oneccl_close
        self._close.argtypes = (ctypes.c_void_p,)
        self._close.restype = None

    def address(self) -> bytes:
        """A new place to meet, for one rank to make and all to open."""
        room, length = ctypes.create_string_buffer(ADDRESS_SIZE), ctypes.c_size_t()
        self._check(self._address, room, ADDRESS_SIZE, ctypes.byref(length))
        return room.raw[: length.value]

    def open(self, address: bytes, *, size: int, rank: int, timeout_s: float) -> int:
        """Returns the handle the other methods take. Collective."""
        handle = ctypes.c_void_p()
        self._check(self._open, address, len(address), size, rank, timeout_s, ctypes.byref(handle))
        assert handle.value is not None
        return handle.value

    def exchange(
        self, handle: int, sends: Sequence[Span], recvs: Sequence[Span], *, timeout_s: float
    ) -> None:
        """Sends to and receives from every rank at once; both have an entry per rank, ours is ignored."""
        self._check(self._exchange, handle, *_columns(sends), *_columns(recvs), timeout_s)

    def collective(
        self, handle: int, op: Op, source: int, target: int, count: int, dtype: DType = DType.F32
    ) -> None:
        """oneCCL's own collective, from address to address; csrc/oneccl/oneccl_link.h says what count is."""
        self._check(self._collective, handle, op, source, target, count, dtype)

    def close(self, handle: int) -> None:
        """For an orderly end, after the last call on every rank. Under MPI not after a failure elsewhere."""
        self._close(handle)

    def _check(self, function: Callable[..., int], *arguments: object) -> None:
        error = ctypes.create_string_buffer(ERROR_SIZE)
        status = function(*arguments, error, ERROR_SIZE)
        if status == 0:
            return
        text = error.value.decode(errors="replace")
        raise TimeoutError(f"oneCCL: {text}") if status == TIMED_OUT else LaunchError(text)


def _columns(spans: Sequence[Span]) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_size_t]]:
    addresses = (ctypes.c_void_p * len(spans))(*(span.address or None for span in spans))
    return addresses, (ctypes.c_size_t * len(spans))(*(span.size for span in spans))
