"""The one file where the two sides of a job meet: who a rank is, and what was promised to it.

Left of it (plan, launchers) decides; right of it (the worker, the trainer) checks. It is also the one
file that names environment variables, so that a search for a name ends here. It must not import
anything of Plough but `errors`, and never torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from plough.errors import ContractError

__all__ = ["Contract", "Env", "MemoryPolicy", "WorkerIdentity", "single_process"]


class Env:
    """Names of environment variables, grouped by who reads them."""

    # torch.distributed's env:// rendezvous
    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
    MASTER_ADDR = "MASTER_ADDR"
    MASTER_PORT = "MASTER_PORT"
    TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID"
    GLOO_SOCKET_IFNAME = "GLOO_SOCKET_IFNAME"
    TORCH_CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"

    # OpenMP: both runtimes, GNU's, Intel's
    OMP_NUM_THREADS = "OMP_NUM_THREADS"
    MKL_NUM_THREADS = "MKL_NUM_THREADS"
    OMP_PROC_BIND = "OMP_PROC_BIND"
    OMP_PLACES = "OMP_PLACES"
    GOMP_CPU_AFFINITY = "GOMP_CPU_AFFINITY"
    KMP_AFFINITY = "KMP_AFFINITY"
    KMP_BLOCKTIME = "KMP_BLOCKTIME"

    # Allocators
    LD_PRELOAD = "LD_PRELOAD"
    MALLOC_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
    MALLOC_TRIM_THRESHOLD = "MALLOC_TRIM_THRESHOLD_"
    MALLOC_TOP_PAD = "MALLOC_TOP_PAD_"
    TCMALLOC_LARGE_ALLOC = "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD"
    MALLOC_CONF = "MALLOC_CONF"

    # oneCCL and Intel MPI
    CCL_WORKER_COUNT = "CCL_WORKER_COUNT"
    CCL_WORKER_AFFINITY = "CCL_WORKER_AFFINITY"
    I_MPI_PIN = "I_MPI_PIN"

    # Launchers, as each tells a rank who it is
    PMI_RANK = "PMI_RANK"
    PMI_SIZE = "PMI_SIZE"
    MPI_LOCALRANKID = "MPI_LOCALRANKID"
    MPI_LOCALNRANKS = "MPI_LOCALNRANKS"
    OMPI_RANK = "OMPI_COMM_WORLD_RANK"
    OMPI_SIZE = "OMPI_COMM_WORLD_SIZE"
    OMPI_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
    OMPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
    SLURM_PROCID = "SLURM_PROCID"
    SLURM_STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS"
    SLURM_LOCALID = "SLURM_LOCALID"
    SLURM_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
    SLURM_NODEID = "SLURM_NODEID"

    # The session
    XDG_RUNTIME_DIR = "XDG_RUNTIME_DIR"
    XDG_CACHE_HOME = "XDG_CACHE_HOME"
    XDG_CONFIG_HOME = "XDG_CONFIG_HOME"

    # Compiling
    CXX = "CXX"
    LC_ALL = "LC_ALL"
    PATH = "PATH"
    TMPDIR = "TMPDIR"

    # Terminals
    NO_COLOR = "NO_COLOR"
    TQDM_POSITION = "TQDM_POSITION"

    # Plough's own
    PLOUGH_CCL_TRANSPORT = "PLOUGH_CCL_TRANSPORT"  # between hosts: auto, shm (none), oneccl or gloo
    PLOUGH_CCL_DIRECT = "PLOUGH_CCL_DIRECT"  # "0": never from buffer to buffer
    PLOUGH_CCL_SPIN_US = "PLOUGH_CCL_SPIN_US"  # how long a waiting rank keeps its core busy
    PLOUGH_CCL_SLOT_KIB = "PLOUGH_CCL_SLOT_KIB"  # shared memory per rank, in each of two halves
    PLOUGH_CCL_ISA = "PLOUGH_CCL_ISA"  # a narrower instruction set than the machine's for reductions
    PLOUGH_CCL_LOCALITY = "PLOUGH_CCL_LOCALITY"  # ranks with different texts act as if on different hosts
    PLOUGH_CACHE_DIR = "PLOUGH_CACHE_DIR"  # where what is compiled at first use is kept
    PLOUGH_BUCKET_MB = "PLOUGH_BUCKET_MB"  # size of gradient buckets where the script asks for none
    PLOUGH_CONTRACT = "PLOUGH_CONTRACT"  # JSON of Contract; set by the shim, read by the worker
    PLOUGH_JOB_DIR = "PLOUGH_JOB_DIR"  # private folder of a job `plough run` started
    PLOUGH_LIVE = "PLOUGH_LIVE"  # "1": the launcher's terminal shows bars that redraw themselves
    PLOUGH_CHECK_REPLICAS = "PLOUGH_CHECK_REPLICAS"  # "0": gradients may differ between ranks on purpose
    PLOUGH_COMPAT = "PLOUGH_COMPAT"  # "0": transformers keeps its own Trainer and TrainingArguments


class WorkerIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rank a process is, as its launcher told it.

    launcher: "torchrun", "intel-mpi" (MPICH's hydra says the same), "openmpi", "slurm", "env" (RANK and
    WORLD_SIZE alone, as in a pod) or "none".
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str

    def __post_init__(self) -> None:
        fits = 0 <= self.rank < self.world_size and 0 <= self.local_rank < self.local_world_size
        if not fits or self.local_world_size > self.world_size:
            raise ContractError(
                f"{self.launcher} says rank {self.rank} of {self.world_size}, "
                f"local rank {self.local_rank} of {self.local_world_size}, which cannot be",
                hint="unset stale RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, or use one launcher",
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> WorkerIdentity:
        """Find out who this process is.

        The innermost launcher wins: torchrun inside a Slurm step is torchrun's. A process without any
        launcher is rank 0 of 1. Raises ContractError when what is set does not add up.
        """
        if Env.TORCHELASTIC_RUN_ID in env and Env.RANK in env:
            return _read(env, "torchrun", Env.RANK, Env.WORLD_SIZE, Env.LOCAL_RANK, Env.LOCAL_WORLD_SIZE)
        if Env.OMPI_RANK in env:
            return _read(
                env, "openmpi", Env.OMPI_RANK, Env.OMPI_SIZE, Env.OMPI_LOCAL_RANK, Env.OMPI_LOCAL_SIZE
            )
        # srun sets PMI_RANK too (--mpi=pmi2); hydra inside a Slurm allocation is known by its local rank.
        if Env.PMI_RANK in env and (Env.MPI_LOCALRANKID in env or Env.SLURM_PROCID not in env):
            return _read(
                env, "intel-mpi", Env.PMI_RANK, Env.PMI_SIZE, Env.MPI_LOCALRANKID, Env.MPI_LOCALNRANKS
            )
        # SLURM_PROCID alone is also set in a batch script outside any step, where there is one process.
        if Env.SLURM_PROCID in env and Env.SLURM_STEP_NUM_TASKS in env:
            return cls(
                rank=_number(env, Env.SLURM_PROCID),
                world_size=_number(env, Env.SLURM_STEP_NUM_TASKS),
                local_rank=_number(env, Env.SLURM_LOCALID),
                local_world_size=_slurm_local_size(env),
                launcher="slurm",
            )
        if Env.RANK in env or env.get(Env.WORLD_SIZE, "1") != "1":
            return cls(
                rank=_number(env, Env.RANK),
                world_size=_number(env, Env.WORLD_SIZE),
                # A pod of a PyTorchJob is told only its rank: it is alone on its host.
                local_rank=_number(env, Env.LOCAL_RANK, 0),
                local_world_size=_number(env, Env.LOCAL_WORLD_SIZE, 1),
                launcher="env",
            )
        return single_process()

    def to_env(self) -> dict[str, str]:
        """The variables torch.distributed and accelerate read, whoever the launcher was."""
        return {
            Env.RANK: str(self.rank),
            Env.WORLD_SIZE: str(self.world_size),
            Env.LOCAL_RANK: str(self.local_rank),
            Env.LOCAL_WORLD_SIZE: str(self.local_world_size),
        }


def single_process() -> WorkerIdentity:
    """The identity of a process nobody launched."""
    return WorkerIdentity(rank=0, world_size=1, local_rank=0, local_world_size=1, launcher="none")


class MemoryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a rank's memory comes from.

    mode: "bind" (only `nodes`), "first-touch" (the kernel's default: the node of the thread that first
    writes a page, which is the rank's own as long as its threads stay put).
    """

    mode: str
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.mode if self.mode != "bind" else f"bind to node {','.join(map(str, self.nodes))}"


class Contract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one rank was promised; the worker compares it with what it finds before any training.

    threads: compute threads (OMP_NUM_THREADS). cpus: logical CPUs the rank is bound to, empty when it is
    not bound on purpose. preloads: libraries that must be mapped. problems: what the shim could not do
    although it was planned, to be reported and not hidden.
    """

    identity: WorkerIdentity
    device: str = "cpu"
    backend: str = "ccl"
    threads: int
    cpus: tuple[int, ...] = ()
    memory: MemoryPolicy = MemoryPolicy(mode="first-touch")
    preloads: tuple[str, ...] = ()
    hosts: int = 1
    problems: tuple[str, ...] = ()

    def to_env(self) -> dict[str, str]:
        """The contract, and who the rank is where there are others.

        A process alone is not told it is rank 0 of 1: accelerate would form a group of one for it.
        """
        identity = self.identity.to_env() if self.identity.world_size > 1 else {}
        return {Env.PLOUGH_CONTRACT: msgspec.json.encode(self).decode(), **identity}

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Contract | None:
        """The contract in `env`, or None when no shim has been here. Raises ContractError if garbled."""
        text = env.get(Env.PLOUGH_CONTRACT)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ContractError(
                f"{Env.PLOUGH_CONTRACT} is garbled: {error}",
                hint="it is set by `plough exec` of the same version; do not set it by hand",
            ) from error


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ContractError(
            f"{name} is {'not set' if text is None else repr(text)}, and a whole number is needed",
            hint="the launcher sets it; start the ranks with `plough run`, mpirun, torchrun or srun",
        ) from None


def _read(env: Mapping[str, str], launcher: str, *names: str) -> WorkerIdentity:
    rank, world_size, local_rank, local_world_size = (_number(env, name) for name in names)
    return WorkerIdentity(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        launcher=launcher,
    )


def _slurm_local_size(env: Mapping[str, str]) -> int:
    """This node's entry of e.g. "2(x3),1": two tasks on each of three nodes, one on the fourth."""
    sizes = list(_expand(env.get(Env.SLURM_STEP_TASKS_PER_NODE, "")))
    node = _number(env, Env.SLURM_NODEID, 0)
    if not 0 <= node < len(sizes):
        raise ContractError(
            f"{Env.SLURM_STEP_TASKS_PER_NODE}={env.get(Env.SLURM_STEP_TASKS_PER_NODE)!r} "
            f"has no entry for node {node}",
            hint="start the ranks with srun",
        )
    return sizes[node]


def _expand(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        size, _, repeat = part.partition("(x")
        try:
            yield from [int(size)] * int(repeat.rstrip(")") or 1)
        except ValueError:
            raise ContractError(
                f"{Env.SLURM_STEP_TASKS_PER_NODE}={text!r} cannot be read",
                hint="srun sets it, e.g. to 2(x3),1; do not set it by hand",
            ) from None
