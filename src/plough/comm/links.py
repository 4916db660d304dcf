"""What lies between hosts: the link among their leaders, and what carries sends and receives.

Chooses oneCCL or gloo, the same for all leaders, and finds the network that leads to the others.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from plough.comm.board import Board
from plough.comm.build import build_oneccl_shim
from plough.comm.locality import Place, leaders
from plough.comm.oneccl import NotUsable, OneCclShim, Transport, environment_for, find_oneccl
from plough.comm.settings import Settings
from plough.contract import Env
from plough.errors import LaunchError, PloughError

__all__ = ["Links", "connect_hosts"]

SIOCGIFADDR = 0x8915
FLAT = "flat"


@dataclass(frozen=True, kw_only=True)
class Links:
    """gloo, plugin: of a leader, the one in use: a gloo backend, or the path and handle of an opened library.

    flat: carries sends and receives of all ranks. All None on one host.
    """

    gloo: Any | None = None
    plugin: tuple[str, int] | None = None
    flat: Any | None = None


def connect_hosts(store: Any, board: Board, where: list[Place], settings: Settings) -> Links:
    """Collective over the group. Raises LaunchError when the transport that was asked for cannot be had."""
    first = leaders(where)
    if len(first) == 1:
        return Links()
    if settings.transport == "shm":
        raise LaunchError(
            f"{Env.PLOUGH_CCL_TRANSPORT}=shm, but the {board.size} ranks are on {len(first)} hosts",
            hint="unset it, or choose gloo or oneccl",
        )
    address = _own_address(store)
    leads = board.rank in first
    shim = _agree_on_oneccl(board, first, settings) if settings.transport != "gloo" else None
    flat = _messages(store, board, address)
    if not leads:
        return Links(flat=flat)
    host = first.index(board.rank)
    if shim is None:
        gloo = _gloo(store, "leaders", host, len(first), board.timeout, address, lazy=False)
        return Links(gloo=gloo, flat=flat)
    return Links(plugin=_open_oneccl(shim, board, first, host, address), flat=flat)


def _agree_on_oneccl(board: Board, first: list[int], settings: Settings) -> str | None:
    """The library, if every leader has one; None to go without. Only leaders look, all ranks learn."""
    path = ""
    if board.rank in first:
        found = find_oneccl()
        if isinstance(found, NotUsable):
            board.post("oneccl", found.reason)
        else:
            try:
                path = str(build_oneccl_shim())
            except PloughError as error:
                board.post("oneccl", str(error))
            else:
                board.post("oneccl", "yes")
    answers = board.read("oneccl", first)
    if all(answer == "yes" for answer in answers):
        return path
    if settings.transport == "oneccl":
        rank, reason = next((r, a) for r, a in zip(first, answers, strict=True) if a != "yes")
        raise LaunchError(
            f"{Env.PLOUGH_CCL_TRANSPORT}=oneccl, but rank {rank} has no usable oneCCL: {reason}",
            hint="pip install 'plough[oneccl]' on every host, or unset it",
        )
    return None


def _open_oneccl(
    path: str, board: Board, first: list[int], host: int, address: str | None
) -> tuple[str, int]:
    found = find_oneccl()
    assert not isinstance(found, NotUsable)
    interface = os.environ.get(Env.GLOO_SOCKET_IFNAME) or _interface_of(address)
    os.environ.update(environment_for(found, Transport.OFI, interface=interface, user=os.environ))
    shim = OneCclShim(path)
    with _without(Env.CCL_WORKER_AFFINITY, Env.CCL_WORKER_COUNT):
        if host == 0:
            board.post("kvs", shim.address().hex())
        (kvs,) = board.read("kvs", first[:1])
        left = max(board.deadline - time.monotonic(), 1.0)
        return path, shim.open(bytes.fromhex(kvs), size=len(first), rank=host, timeout_s=left)


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """These are about our own threads; oneCCL would take them for its, and refuse what does not fit."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _messages(store: Any, board: Board, address: str | None) -> Any:
    """What carries messages between any two ranks; they connect when there is the first.

    Addresses are looked up now. gloo would ask the store when it connects, and a store on a rank that is
    stopped does not answer, nor does asking it ever end.
    """
    known = HashStore()
    group = _gloo(known, FLAT, board.rank, board.size, board.timeout, address, lazy=True)
    own = PrefixStore(f"{FLAT}/", known)
    keys = [f"{device}/{board.rank}" for device in range(known.num_keys())]
    found = {key: base64.b64encode(own.get(key)).decode() for key in keys} if own.check(keys) else {}
    board.post("address", json.dumps(found))
    everyone = [json.loads(text) for text in board.read("address", range(board.size))]
    if not all(everyone):  # a torch whose gloo names its keys in another way
        return _gloo(store, FLAT, board.rank, board.size, board.timeout, address, lazy=True)
    for addresses in everyone:
        for key, text in addresses.items():
            own.set(key, base64.b64decode(text))  # type: ignore[arg-type]  # takes bytes too
    return group


def _gloo(
    store: Any, name: str, rank: int, size: int, timeout: timedelta, address: str | None, *, lazy: bool
) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # gloo waits five times as long for a first connection, which lazy ones make in a send or receive; for
    # the messages themselves it is told how long to wait.
    options._timeout = timeout / 5 if lazy else timeout
    create = dist.ProcessGroupGloo.create_device
    if names := os.environ.get(Env.GLOO_SOCKET_IFNAME):
        options._devices = [create(interface=name, lazy_init=lazy) for name in names.split(",")]
    elif address is not None:
        options._devices = [create(hostname=address, lazy_init=lazy)]
    else:
        options._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=lazy)]
    return dist.ProcessGroupGloo(PrefixStore(f"{name}/", store), rank, size, options)


def _own_address(store: Any) -> str | None:
    """Our address on the network that leads to the store's host; None leaves the choice to gloo."""
    if os.environ.get(Env.GLOO_SOCKET_IFNAME):
        return None
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    for family, kind, protocol, _, target in socket.getaddrinfo(
        store.host, store.port, type=socket.SOCK_DGRAM
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # of a datagram socket: nothing is sent, a route is chosen
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _interface_of(address: str | None) -> str | None:
    """The name of the network interface with this IPv4 address."""
    if address is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
