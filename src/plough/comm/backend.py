"""`ccl` for torch.distributed: what happens when a group is formed.

In order: tell the others who we are, find out who shares our host, share memory there, connect the leaders
of the hosts, hand all of it to the C++ backend. Decides nothing about a single collective.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import msgspec

from plough.comm.board import Board
from plough.comm.build import load_extension
from plough.comm.links import connect_hosts
from plough.comm.locality import Place, RankFacts, candidates, leaders, own_facts, places
from plough.comm.settings import Settings, read_settings
from plough.errors import UsageError

__all__ = ["create"]

YIELD_US = 1000.0
SPIN_US = 50.0


def create(options: Any, backend_options: Any = None) -> Any:
    """Make the backend of one group, as torch.distributed asks for it.

    options: torch's `_DistributedBackendOptions`. Raises BuildError without a compiler, UsageError for
    settings that make no sense, LaunchError when the wanted transport cannot be had, DistBackendError
    naming ranks that did not come.
    """
    settings = read_settings(os.environ)
    extension = load_extension()
    if settings.isa is not None:
        try:
            extension.set_reduce_isa(settings.isa)
        except RuntimeError as error:
            raise UsageError(f"PLOUGH_CCL_ISA={settings.isa}: {error}") from None
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    board = Board(options.store, rank, size, timeout)
    everyone = range(size)

    board.post("who", msgspec.json.encode(own_facts(settings.locality)).decode())
    facts = [msgspec.json.decode(text, type=RankFacts) for text in board.read("who", everyone)]
    hosts = candidates(facts)
    segment, where = _share_memory(board, extension, hosts, facts, settings)
    names = [f"rank {r} (process {fact.pid} on {fact.host})" for r, fact in enumerate(facts)]
    links = connect_hosts(options.store, board, where, settings)
    return extension.CclBackend(
        store=options.store,
        rank=rank,
        segment=segment,
        places=[(place.host, place.index) for place in where],
        names=names,
        host=facts[rank].host,
        timeout_s=timeout.total_seconds(),
        link=links.gloo,
        plugin=links.plugin,
        flat=links.flat,
        leaders=[names[r] for r in leaders(where)],
        spin_us=_spin_us(settings, facts, where, rank),
        yield_us=YIELD_US,
        workers=settings.workers,
        worker_cpus=list(settings.worker_cpus),
        direct=settings.direct,
    )


def _share_memory(
    board: Board, extension: Any, hosts: list[list[int]], facts: list[RankFacts], settings: Settings
) -> tuple[Any, list[Place]]:
    """The memory of our host, and where every rank turned out to be."""
    mine = next(host for host in hosts if board.rank in host)
    leader = mine[0]
    if board.rank == leader:
        token = secrets.token_hex(12)
        segment = extension.Segment.create(len(mine), board.size, settings.slot_bytes, token)
        board.post("memory", f"{os.getpid()} {segment.fd} {token}")
    else:
        pid, fd, token = board.read("memory", [leader])[0].split()
        try:
            segment = extension.Segment.attach(int(pid), int(fd), token)
        except RuntimeError as error:
            segment = None
            board.post("attached", f"no: {error}")
        else:
            board.post("attached", "yes")
    followers = [rank for host in hosts for rank in host[1:]]
    answers = dict(zip(followers, board.read("attached", followers), strict=True))
    where = places(hosts, {rank: answer == "yes" for rank, answer in answers.items()})
    here = sum(place.host == where[board.rank].host for place in where)
    if segment is None or here != len(mine):
        # Somebody of this host cannot reach the memory that was made for all of them.
        return _share_again(board, extension, where, settings), where
    return segment, where


def _share_again(board: Board, extension: Any, where: list[Place], settings: Settings) -> Any:
    """Memory for those of our host who are left."""
    here = [rank for rank, place in enumerate(where) if place.host == where[board.rank].host]
    if board.rank == here[0]:
        token = secrets.token_hex(12)
        segment = extension.Segment.create(len(here), board.size, settings.slot_bytes, token)
        board.post("memory again", f"{os.getpid()} {segment.fd} {token}")
        return segment
    pid, fd, token = board.read("memory again", here[:1])[0].split()
    return extension.Segment.attach(int(pid), int(fd), token)


def _spin_us(settings: Settings, facts: list[RankFacts], where: list[Place], rank: int) -> float:
    """Waiting ranks must not keep busy the cores that those they wait for need."""
    if settings.spin_us is not None:
        return settings.spin_us
    here = [fact for fact, place in zip(facts, where, strict=True) if place.host == where[rank].host]
    cores = {cpu for fact in here for cpu in fact.cpus}
    return SPIN_US if len(cores) >= len(here) else 0.0
