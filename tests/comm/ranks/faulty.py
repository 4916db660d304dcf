"""One rank of a fault case: calls collectives until something fails, and says what it saw.

`live` is called in a process of its own, forked by `zygote`. What a rank says are JSON objects, one a line:
"ready" once the fault may come, "raised" with the exception and when, "again" with what further calls gave,
"waits" to be told to go on, "checked" after a look at memory it took before that. Ends with one of the codes
below.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import Tensor

import plough.comm.backend
from plough.comm.build import load_extension

RAISED, DID_NOT_RAISE, WRONG = 17, 18, 19
"""Exit codes: as it should be in a case with a fault; all calls succeeded; something else is wrong."""

LOCALITY, DIRECT, TRANSPORT = "PLOUGH_CCL_LOCALITY", "PLOUGH_CCL_DIRECT", "PLOUGH_CCL_TRANSPORT"
SMALLEST, LARGEST = 64, 16 << 20  # bytes
CANARY, NOBODY = 0xA5, 65534


@dataclass
class Me:
    """Who a rank is, and how it talks to whoever runs the case. doing: for messages."""

    rank: int
    size: int
    case: dict[str, Any]
    out: TextIO
    orders: TextIO
    doing: str = "nothing"
    works: list[Any] = field(default_factory=list)  # started and not waited for
    freed: list[int] = field(default_factory=list)  # sizes of the tensors of the call that failed

    def say(self, event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, "time": time.monotonic(), **facts}), file=self.out, flush=True)

    def hear(self) -> dict[str, Any]:
        line = self.orders.readline()
        if not line:  # whoever runs the case is gone
            os._exit(WRONG)
        return dict(json.loads(line))

    @property
    def is_victim(self) -> bool:
        return self.rank == self.case["victim"]

    @property
    def right(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def left(self) -> int:
        return (self.rank - 1) % self.size


def live(rank: int, case: dict[str, Any], out: TextIO, orders: TextIO) -> int:
    """Everything a rank does; the code to exit with."""
    me = Me(rank, case["size"], case, out, orders)
    os.environ[DIRECT] = "1" if case["direct"] else "0"
    os.environ["CCL_WORKER_COUNT"] = str(case["workers"])
    if case["hosts"] > 1:
        os.environ[LOCALITY] = f"host {rank % case['hosts']}"
        os.environ[TRANSPORT] = "gloo"
    torch.set_num_threads(1)
    store = store_of(me)
    code = DID_NOT_RAISE
    try:
        form(me, dist.PrefixStore("first", store), rank, me.size)
        me.doing = case["plot"]
        PLOTS[case["plot"]](me)
    except Exception as error:
        now = time.monotonic()
        text = str(error).removesuffix("\n")
        me.say("raised", at=now, type=type(error).__name__, text=text, doing=me.doing)
        error.__traceback__ = None  # it holds the frames, and they hold the tensors
        code = RAISED
    else:
        me.say("succeeded", doing=me.doing)
    if code == RAISED and dist.is_initialized():
        further_calls(me)
    canary = fill_canary(me)
    me.say("waits")
    order = me.hear()
    sung = all(bool((tensor == CANARY).all()) for tensor in canary)
    me.say("checked", canary=sung)
    if dist.is_initialized():
        start = time.monotonic()
        dist.destroy_process_group()
        me.say("destroyed", seconds=time.monotonic() - start)
    if rank in order.get("again", []):
        new_group(me, store, order["again"])
        me.hear()  # the store may be ours
    return code if sung else WRONG


def store_of(me: Me) -> dist.Store:
    """The store is with whoever runs the case, or with rank 0."""
    wait = timedelta(seconds=60)
    if me.case["store"] == "rank 0" and me.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=wait, wait_for_workers=False)
        me.say("store", port=store.port)
        return store
    return dist.TCPStore("127.0.0.1", me.hear()["port"], is_master=False, timeout=wait)


def form(me: Me, store: dist.Store, rank: int, size: int) -> None:
    me.doing = "forming the group"
    if me.case["plot"] == "never comes" and me.is_victim:
        me.say("ready")
        me.say("waits")
        me.hear()
        sys.exit(0)
    if me.case["plot"] == "dies while it forms" and me.is_victim:
        # It has told the others where it is, and mapped the memory of its host.
        me.say("ready")
        plough.comm.backend.connect_hosts = lambda *_: os._exit(3)  # type: ignore[assignment]
    timeout = timedelta(seconds=me.case["timeout"])
    dist.init_process_group("ccl", store=store, rank=rank, world_size=size, timeout=timeout)


def further_calls(me: Me) -> None:
    """After a failure each call fails at once and says why; so does waiting for what was started before."""
    peer = me.right
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
        "barrier": dist.barrier,
        "async": lambda: dist.all_reduce(torch.ones(100_000), async_op=True).wait(),
        "send": lambda: dist.send(torch.ones(100_000), peer),
        "recv": lambda: dist.recv(torch.ones(4), peer),
    }
    said = {}
    for name, call in [*calls.items(), *((f"pending {i}", work.wait) for i, work in enumerate(me.works))]:
        start, text = time.monotonic(), None
        try:
            call()
        except Exception as error:
            text = str(error)
        said[name] = {"text": text, "seconds": time.monotonic() - start}
    me.works.clear()
    me.say("again", calls=said)


def fill_canary(me: Me) -> list[Tensor]:
    """Memory as the allocator gives it, so most likely where the tensors of the failed call were."""
    sizes = [*me.freed * 2, *(64 << i for i in range(19))]
    return [torch.full((size,), CANARY, dtype=torch.uint8) for size in sizes]


def new_group(me: Me, store: dist.Store, members: list[int]) -> None:
    """The survivors form a group of their own."""
    start = time.monotonic()
    rank = members.index(me.rank)
    form(me, dist.PrefixStore("second", store), rank, len(members))
    for count in (10, 1 << 18):
        tensor = torch.full((count,), float(rank))
        dist.all_reduce(tensor)
        assert bool((tensor == sum(range(len(members)))).all())
    dist.barrier()
    dist.destroy_process_group()
    me.say("formed again", seconds=time.monotonic() - start)


# ---- the random sequence ----


def at_random(me: Me) -> None:
    dice = random.Random(me.case["seed"])  # the same on all ranks
    own = random.Random(me.case["seed"] * 31 + me.rank)
    dist.barrier()
    me.say("ready")
    for number in range(10**6):
        kind = dice.choice(me.case["kinds"] or list(KINDS))
        dtype = dice.choice((torch.float32, torch.bfloat16))
        nbytes = int(SMALLEST * 2 ** dice.uniform(0, math.log2(LARGEST / SMALLEST)))
        count, root = max(1, nbytes // dtype.itemsize), dice.randrange(me.size)
        me.doing = f"{kind} {number} of {nbytes} bytes of {dtype}, root {root}"
        me.freed = [nbytes, nbytes // me.size]
        KINDS[kind](me, count, dtype, root, own)


def full(count: int, dtype: torch.dtype, value: int) -> Tensor:
    return torch.full((count,), float(value), dtype=dtype)


def expect(tensor: Tensor, value: int, me: Me) -> None:
    """The ends and the middle: looking at all of it takes longer than the call."""
    found = [float(tensor[place]) for place in (0, tensor.numel() // 2, -1)]
    if found != [float(value)] * 3:
        raise AssertionError(f"rank {me.rank}, {me.doing}: {found} is not {value}")


def total(me: Me) -> int:
    return me.size * (me.size + 1) // 2


def all_reduce(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    tensor = full(count, dtype, me.rank + 1)
    dist.all_reduce(tensor)
    expect(tensor, total(me), me)


def strided_all_reduce(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    """What is not in one piece is reduced in a stand-in that the caller never sees."""
    tensor = full(count, dtype, me.rank + 1)[::2]
    dist.all_reduce(tensor)
    expect(tensor, total(me), me)


def several_all_reduce(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    tensors = [full(max(1, count >> 2 * i), dtype, me.rank + i) for i in range(4)]
    me.works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in own.sample(range(4), 4):
        me.works[i].wait()
        expect(tensors[i], total(me) + (i - 1) * me.size, me)
    me.works.clear()


def reduce(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    tensor = full(count, dtype, me.rank + 1)
    dist.reduce(tensor, root)
    expect(tensor, total(me) if me.rank == root else me.rank + 1, me)


def broadcast(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    tensor = full(count, dtype, me.rank + 1)
    dist.broadcast(tensor, root)
    expect(tensor, root + 1, me)


def all_gather(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    count = max(1, count // me.size)
    found = [full(count, dtype, -1) for _ in range(me.size)]
    dist.all_gather(found, full(count, dtype, me.rank))
    for rank, tensor in enumerate(found):
        expect(tensor, rank, me)


def gather(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    count = max(1, count // me.size)
    found = [full(count, dtype, -1) for _ in range(me.size)] if me.rank == root else None
    dist.gather(full(count, dtype, me.rank), found, root)
    for rank, tensor in enumerate(found or []):
        expect(tensor, rank, me)


def scatter(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    count = max(1, count // me.size)
    pieces = [full(count, dtype, rank) for rank in range(me.size)] if me.rank == root else None
    found = full(count, dtype, -1)
    dist.scatter(found, pieces, root)
    expect(found, me.rank, me)


def reduce_scatter(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    count = max(1, count // me.size)
    found = full(count, dtype, -1)
    dist.reduce_scatter(found, [full(count, dtype, me.rank + to) for to in range(me.size)])
    expect(found, total(me) + me.size * (me.rank - 1), me)


def all_to_all(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    count = max(1, count // me.size)
    found = full(count * me.size, dtype, -1)
    pieces = torch.cat([full(count, dtype, 10 * me.rank + to) for to in range(me.size)])
    dist.all_to_all_single(found, pieces)
    for rank, piece in enumerate(found.chunk(me.size)):
        expect(piece, 10 * rank + me.rank, me)


def barrier(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    dist.barrier()


def ring(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    """Everybody sends to the right and receives from the left."""
    found, sent = full(count, dtype, -1), full(count, dtype, me.rank)
    sending = dist.isend(sent, me.right)
    me.works.append(sending)
    dist.recv(found, me.left)
    expect(found, me.left, me)
    sending.wait()
    me.works.clear()


def chain(me: Me, count: int, dtype: torch.dtype, root: int, own: random.Random) -> None:
    """From rank 0 on, everybody receives before it sends."""
    tensor = full(count, dtype, 5 if me.rank == 0 else -1)
    if me.rank > 0:
        dist.recv(tensor, me.left)
    if me.rank < me.size - 1:
        dist.send(tensor, me.right)
    expect(tensor, 5, me)


KINDS: dict[str, Callable[[Me, int, torch.dtype, int, random.Random], None]] = {
    "all_reduce": all_reduce,
    "strided all_reduce": strided_all_reduce,
    "several all_reduce": several_all_reduce,
    "reduce": reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "barrier": barrier,
    "ring": ring,
    "chain": chain,
}


# ---- plots without chance ----


def some_calls(me: Me) -> None:
    """Three calls that go well."""
    for count in (10, 100_000, 10):
        all_reduce(me, count, torch.float32, 0, random.Random(0))


def exits(me: Me) -> None:
    some_calls(me)
    if me.is_victim:
        me.say("ready")
        sys.exit(0)
    some_calls(me)


def leaves(me: Me) -> None:
    """The victim's own code raises, and it tidies up as one should."""
    some_calls(me)
    try:
        if me.is_victim:
            me.say("ready")
            raise ValueError("of the user's code")
        some_calls(me)
    except ValueError:
        dist.destroy_process_group()
        raise


def stuck(me: Me) -> None:
    """The victim is busy elsewhere."""
    some_calls(me)
    if me.is_victim:
        me.say("ready")
        time.sleep(me.case["timeout"] + 0.5)
    some_calls(me)


def stuck_before_chain(me: Me) -> None:
    """Rank 0 is busy elsewhere; rank 1 waits for it, rank 2 for rank 1, and so on."""
    some_calls(me)
    if me.is_victim:
        me.say("ready")
        time.sleep(me.case["timeout"] + 0.5)
    chain(me, 100_000, torch.float32, 0, random.Random(0))


def other_call(me: Me) -> None:
    some_calls(me)
    count = me.case["count"]
    tensor = torch.ones(count)
    plain: dict[str, Callable[[], Any]] = {
        "collective": lambda: dist.all_reduce(tensor),
        "dtype": lambda: dist.all_reduce(tensor),
        "size": lambda: dist.all_reduce(tensor),
        "reduction": lambda: dist.all_reduce(tensor),
        "root": lambda: dist.broadcast(tensor, 0),
    }
    other: dict[str, Callable[[], Any]] = {
        "collective": dist.barrier,
        "dtype": lambda: dist.all_reduce(tensor.to(torch.int32)),
        "size": lambda: dist.all_reduce(torch.ones(count + 1)),
        "reduction": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        "root": lambda: dist.broadcast(tensor, 1),
    }
    me.doing = f"other {me.case['differs']}"
    (other if me.is_victim else plain)[me.case["differs"]]()


def other_size_of_message(me: Me) -> None:
    some_calls(me)
    count = me.case["count"]
    if me.is_victim:
        dist.send(torch.ones(count), me.right)
    elif me.rank == (me.case["victim"] + 1) % me.size:
        dist.recv(torch.ones(count + 1), me.left)
    some_calls(me)


def large(me: Me) -> None:
    shm = os.statvfs("/dev/shm")
    me.say("shm", size=shm.f_blocks * shm.f_frsize)
    all_reduce(me, (64 << 20) // 4, torch.float32, 0, random.Random(0))


def other_user(me: Me) -> None:
    """Another user knows all there is to know of the memory, and tries to open it."""
    extension, token = load_extension(), "an open secret"
    segment = extension.Segment.create(2, 2, 4096, token)
    pid, (ours, theirs) = os.getpid(), os.pipe()
    extension.Segment.attach(pid, segment.fd, token)  # we may
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            extension.Segment.attach(pid, segment.fd, token)
        except RuntimeError as error:
            os.write(theirs, str(error).encode())
        else:
            os.write(theirs, b"attached")
        os._exit(0)
    os.waitpid(child, 0)
    me.say("tried", text=os.read(ours, 4096).decode())


PLOTS: dict[str, Callable[[Me], None]] = {
    "at random": at_random,
    "exits": exits,
    "leaves": leaves,
    "never comes": some_calls,
    "dies while it forms": some_calls,
    "stuck": stuck,
    "stuck before chain": stuck_before_chain,
    "other call": other_call,
    "other size of message": other_size_of_message,
    "large": large,
    "other user": other_user,
}
