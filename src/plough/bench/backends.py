"""One call of a collective, as each backend takes it: torch.distributed's API, or oneCCL's own.

Everything is prepared before, so that the call is all there is to time. Knows nothing of timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist

from plough.bench.patterns import Buffers
from plough.bench.sizes import Point
from plough.comm.build import build_oneccl_shim
from plough.comm.oneccl import (
    DType,
    OneCcl,
    OneCclShim,
    Op,
    Span,
    Transport,
    environment_for,
    require_oneccl,
    started_by_hydra,
)
from plough.contract import WorkerIdentity
from plough.errors import PloughError
from plough.train.group import all_cpus_allowed

__all__ = ["Backend", "OneCclBackend", "Operation", "TorchBackend", "open_oneccl", "open_torch"]

Operation = Callable[[], object]

OPEN_TIMEOUT_S = 120.0
EXCHANGE_TIMEOUT_S = 300.0
OVER = {Transport.MPI: "MPI", Transport.OFI: "libfabric"}
NOTHING = Span(0, 0)


class Backend(Protocol):
    """Something that can do collectives, and what it says of itself."""

    @property
    def name(self) -> str: ...
    @property
    def facts(self) -> dict[str, str]: ...
    def operation(self, point: Point, buffers: Buffers) -> Operation | None:
        """The call; None where the backend has no such collective."""
        ...


# torch 2.13 renamed them, and warns at each call by the old name.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class TorchBackend:
    """ccl or gloo, through what a user of torch.distributed calls. Roots are rank 0."""

    name: str
    group: Any
    facts: dict[str, str]

    def operation(self, point: Point, buffers: Buffers) -> Operation | None:
        source, target, group = buffers.source, buffers.target, self.group
        rank, count = dist.get_rank(), point.count
        match point.collective:
            case "all_reduce":
                return partial(dist.all_reduce, source, group=group)
            case "reduce":
                return partial(dist.reduce, source, 0, group=group)
            case "broadcast":
                return partial(dist.broadcast, source, 0, group=group)
            case "all_gather":
                return partial(_ALL_GATHER, target, source, group=group)
            case "reduce_scatter":
                return partial(_REDUCE_SCATTER, target, source, group=group)
            case "all_to_all":
                return partial(dist.all_to_all_single, target, source, group=group)
            case "gather":
                pieces = _pieces(target, count) if rank == 0 else None
                return partial(dist.gather, source, pieces, 0, group=group)
            case "scatter":
                pieces = _pieces(source, count) if rank == 0 else None
                return partial(dist.scatter, target, pieces, 0, group=group)
            case "send_recv":
                return self._ping_pong(buffers, rank, point.ranks - 1)
        return partial(dist.barrier, group=group)

    def _ping_pong(self, buffers: Buffers, rank: int, last: int) -> Operation:
        source, target, group = buffers.source, buffers.target, self.group

        def first() -> None:
            dist.send(source, last, group=group)
            dist.recv(target, last, group=group)

        def other() -> None:
            dist.recv(target, 0, group=group)
            dist.send(target, 0, group=group)

        return {0: first, last: other}.get(rank, _nothing)


@dataclass(frozen=True)
class OneCclBackend:
    """oneCCL at its own C API: it has no binding to this torch, so torch's part of a call is missing."""

    shim: OneCclShim
    handle: int
    rank: int
    facts: dict[str, str]
    name: str = "oneccl"

    def operation(self, point: Point, buffers: Buffers) -> Operation | None:
        source, target = buffers.source.data_ptr(), buffers.target.data_ptr()
        if point.collective in ("all_reduce", "reduce", "broadcast"):
            target = source  # in place, as torch's are
        if point.collective == "send_recv":
            return self._ping_pong(point, buffers)
        op = _ONECCL.get(point.collective)
        if op is None:
            return None
        dtype = DType.BF16 if point.dtype == "bfloat16" else DType.F32
        return partial(self.shim.collective, self.handle, op, source, target, point.count, dtype)

    def close(self) -> None:
        self.shim.close(self.handle)

    def _ping_pong(self, point: Point, buffers: Buffers) -> Operation:
        last = point.ranks - 1
        if self.rank not in (0, last):
            return _nothing
        peer = last - self.rank
        source = Span(buffers.source.data_ptr(), point.bytes)
        target = Span(buffers.target.data_ptr(), point.bytes)

        def half(sends: Span, receives: Span) -> Operation:
            def columns(span: Span) -> list[Span]:
                return [span if rank == peer else NOTHING for rank in range(point.ranks)]

            exchange, handle = self.shim.exchange, self.handle
            return partial(exchange, handle, columns(sends), columns(receives), timeout_s=EXCHANGE_TIMEOUT_S)

        if self.rank == 0:
            ping, pong = half(source, NOTHING), half(NOTHING, target)
        else:
            ping, pong = half(NOTHING, target), half(target, NOTHING)

        def both() -> None:
            ping()
            pong()

        return both


_ONECCL = {
    "all_reduce": Op.ALLREDUCE,
    "reduce": Op.REDUCE,
    "broadcast": Op.BROADCAST,
    "all_gather": Op.ALLGATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
    "all_to_all": Op.ALLTOALL,
    "barrier": Op.BARRIER,
}
"""oneCCL has no gather and no scatter."""


def _pieces(whole: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [whole[start : start + count] for start in range(0, len(whole), count)]


def _nothing() -> None:
    """For the ranks between the two that play ping-pong."""


def open_torch(name: str) -> TorchBackend:
    """A process group of all ranks beside the default one. Collective."""
    with all_cpus_allowed():
        group = dist.new_group(backend=name)
    found = group._get_backend(torch.device("cpu"))
    facts = dict(found.facts()) if hasattr(found, "facts") else {"torch": str(torch.__version__)}
    return TorchBackend(name, group, dict(sorted(facts.items())))


def open_oneccl(identity: WorkerIdentity) -> OneCclBackend:
    """A oneCCL communicator of all ranks. Collective: if one rank cannot, none does.

    Raises on every rank the error of the first that has one. Close it only if all went well.
    """
    problem: _Problem = None
    try:
        found = require_oneccl()
        shim = OneCclShim(build_oneccl_shim())
        transport = _transport(found, os.environ)
        rank, size = identity.local_rank, identity.local_world_size
        wanted = environment_for(found, transport, local_rank=rank, local_size=size, user=os.environ)
        os.environ.update(wanted)
        address = shim.address() if identity.rank == 0 else b""
    except PloughError as error:
        problem = error.cause, error.hint
    _agree(problem)
    addresses = [address]
    dist.broadcast_object_list(addresses, 0)
    handle = 0
    try:
        with all_cpus_allowed():
            size, rank = identity.world_size, identity.rank
            handle = shim.open(addresses[0], size=size, rank=rank, timeout_s=OPEN_TIMEOUT_S)
    except PloughError as error:
        problem = error.cause, error.hint
    except TimeoutError as error:
        problem = str(error), None
    _agree(problem)
    facts = {"release": found.version, "over": OVER[transport], "settings": _settings(os.environ)}
    return OneCclBackend(shim, handle, identity.rank, facts)


def _transport(found: OneCcl, env: Mapping[str, str]) -> Transport:
    """The user's, or what oneCCL runs on already as ccl's link between hosts: it can be told only once.

    Else MPI, on which it is at its best, where Intel MPI's launcher started the ranks.
    """
    chosen = env.get("CCL_ATL_TRANSPORT")
    if chosen in set(Transport):
        return Transport(chosen)
    return Transport.MPI if found.mpi and started_by_hydra(env) else Transport.OFI


def _settings(env: Mapping[str, str]) -> str:
    """What oneCCL was told, in force now, without the paths of libraries."""
    ours = sorted(name for name in env if name.startswith("CCL_") and "/" not in env[name])
    return " ".join(f"{name}={env[name]}" for name in ours)


_Problem: TypeAlias = "tuple[str, str | None] | None"


class _Unavailable(PloughError):
    """What kept a backend from being opened, on whichever rank."""


def _agree(mine: _Problem) -> None:
    """Raises on every rank what the first rank that has a problem has."""
    told: list[_Problem] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    for problem in told:
        if problem is not None:
            raise _Unavailable(problem[0], hint=problem[1])
