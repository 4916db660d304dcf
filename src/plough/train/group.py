"""Form the process group that the ranks of one job train in, and make sure it is the one that was meant.

Knows torch.distributed and the contract; nothing of models or data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from plough.comm.register import register as register_ccl
from plough.contract import Contract, Env, WorkerIdentity
from plough.errors import ContractError, LaunchError, RanksAloneError

__all__ = ["all_cpus_allowed", "check_group", "default_store", "ensure_group", "torch_backend"]


def torch_backend(name: str | None, device: str) -> str:
    """The torch backend for what the user asked; None means: choose (ccl between CPUs, nccl between GPUs).

    Raises LaunchError for one that this PyTorch does not have.
    """
    if name is None:
        name = "ccl" if device == "cpu" else "nccl"
    if name == "ccl":
        # torch does this itself when it is imported, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0.
        register_ccl()
    if name == "mpi" and not dist.is_mpi_available():
        raise LaunchError(
            "--ddp_backend mpi: this PyTorch was built without MPI",
            hint="leave it out, or use --ddp_backend ccl (mpirun may still start the ranks)",
        )
    return name


def ensure_group(identity: WorkerIdentity, backend: str, timeout: timedelta) -> None:
    """Form the default group if there is none yet, then check it.

    Raises LaunchError when a peer does not come in time or the address cannot be had, RanksAloneError
    or ContractError when a group that exists is not the one that was launched.
    """
    if identity.world_size == 1 and not dist.is_initialized():
        return
    if not dist.is_initialized():
        os.environ.update(identity.to_env())
        where = f"{os.environ.get(Env.MASTER_ADDR)}:{os.environ.get(Env.MASTER_PORT)}"
        if Env.MASTER_ADDR not in os.environ or Env.MASTER_PORT not in os.environ:
            raise LaunchError(
                f"rank {identity.rank} of {identity.world_size} does not know where to meet the others: "
                "MASTER_ADDR or MASTER_PORT is not set",
                hint="start the script through `plough exec`, which sets both",
            )
        try:
            with all_cpus_allowed():
                dist.init_process_group(backend, timeout=timeout)
        except (dist.DistError, RuntimeError, ValueError, OSError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
                raise LaunchError(
                    f"rank {identity.rank}: port {where} is taken by another program: {text}",
                    hint="another job here? unset MASTER_PORT to have a free one chosen, or change it",
                ) from error
            raise LaunchError(
                f"rank {identity.rank} of {identity.world_size} could not join the others at {where} "
                f"within {timeout.total_seconds():g} s: {text}",
                hint="did every rank start? is MASTER_ADDR the first host's address, and the port open?",
            ) from error
    check_group(identity)


def check_group(identity: WorkerIdentity) -> None:
    """Raises RanksAloneError or ContractError unless the default group is the job that was launched."""
    launched = f"{identity.launcher} started {identity.world_size} ranks"
    if identity.world_size > 1 and not dist.is_initialized():
        raise RanksAloneError(
            f"{launched}, but rank {identity.rank} has joined no process group: each rank would train alone "
            "on all the data",
            hint="use transformers' TrainingArguments through `plough exec` (without --no-compat), or call "
            "torch.distributed.init_process_group before training",
        )
    if not dist.is_initialized():
        return
    if dist.get_world_size() != identity.world_size:
        error = RanksAloneError if dist.get_world_size() == 1 else ContractError
        raise error(
            f"{launched}, but rank {identity.rank} is in a group of {dist.get_world_size()}",
            hint="stale RANK or WORLD_SIZE variables, or a script that forms its own group",
        )
    if dist.get_rank() != identity.rank:
        raise ContractError(
            f"{launched}; this is rank {identity.rank} of them, but rank {dist.get_rank()} of the group"
        )


@contextmanager
def all_cpus_allowed() -> Iterator[None]:
    """Threads created inside may use every core of the rank.

    OpenMP binds the main thread to one core, and threads inherit the binding of the one that creates
    them: the backend's would all sit on the busiest core of the rank.
    """
    contract = Contract.from_env(os.environ)
    if contract is None or not contract.cpus:
        yield
        return
    narrow = os.sched_getaffinity(0)
    os.sched_setaffinity(0, contract.cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, narrow)


def default_store() -> torch._C._distributed_c10d.Store:
    """The default group's key-value store. The one place that touches this private name of torch."""
    store: torch._C._distributed_c10d.Store = torch.distributed.distributed_c10d._get_default_store()
    return store
