"""One rank that compares every collective of torch.distributed with what it must give. Prints facts as JSON.

Run as: python values.py; who it is comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
COUNTS = [int(text) for text in os.environ.get("COUNTS", "0,1,7,3000,70001").split(",")]


def of(rank: int, count: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
    """What rank `rank` brings: small whole numbers, so that every type adds them up exactly."""
    return ((torch.arange(count) * 7 + 3 * rank + salt) % 5).to(dtype)


def everyone(count: int, dtype: torch.dtype) -> list[Tensor]:
    return [of(rank, count, dtype) for rank in range(SIZE)]


def expect(found: Tensor, wanted: Tensor, what: object) -> None:
    assert torch.equal(found, wanted), f"rank {RANK}: {what}: {found} is not {wanted}"


def add(tensors: list[Tensor]) -> Tensor:
    if tensors[0].dtype is torch.bool:
        return torch.stack(tensors).any(0)
    return torch.stack([t.to(torch.float64) for t in tensors]).sum(0).to(tensors[0].dtype)


def reductions(dtype: torch.dtype) -> dict[str, tuple[object, Callable[[list[Tensor]], Tensor]]]:
    """Every operation that makes sense for the type, and what it must give."""
    stack = torch.stack
    found: dict[str, tuple[object, Callable[[list[Tensor]], Tensor]]] = {
        "sum": (dist.ReduceOp.SUM, add),
        "min": (dist.ReduceOp.MIN, lambda ts: stack(ts).amin(0) if dtype != torch.bool else stack(ts).all(0)),
        "max": (dist.ReduceOp.MAX, lambda ts: stack(ts).amax(0) if dtype != torch.bool else stack(ts).any(0)),
        "product": (
            dist.ReduceOp.PRODUCT,
            lambda ts: (
                stack(ts).all(0) if dtype == torch.bool else stack([t.double() for t in ts]).prod(0).to(dtype)
            ),
        ),
    }
    if dtype.is_floating_point:
        found["avg"] = (
            dist.ReduceOp.AVG,
            lambda ts: (stack([t.double() for t in ts]).sum(0) / SIZE).to(dtype),
        )
        found["premul"] = (
            dist._make_nccl_premul_sum(2.0),
            lambda ts: (stack([2 * t.double() for t in ts]).sum(0)).to(dtype),
        )
    else:
        bits = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
        for name, function in bits.items():

            def fold(ts: list[Tensor], function: Callable[[Tensor, Tensor], Tensor] = function) -> Tensor:
                result = ts[0]
                for tensor in ts[1:]:
                    result = function(result, tensor)
                return result

            found[name] = (getattr(dist.ReduceOp, name.upper()), fold)
    return found


def check_reductions() -> None:
    for dtype in DTYPES:
        for count in COUNTS:
            all_of_them = everyone(count, dtype)
            for name, (op, reference) in reductions(dtype).items():
                nothing = count == 0 and name in ("min", "max")
                wanted = all_of_them[0] if nothing else reference(all_of_them)
                tolerance = 1e-2 if name == "avg" else 0.0
                found = of(RANK, count, dtype)
                dist.all_reduce(found, op)
                close = torch.allclose(found.double(), wanted.double(), atol=tolerance, rtol=tolerance)
                assert close, f"rank {RANK}: all_reduce {name} of {count} {dtype}: {found} is not {wanted}"
                if name not in ("sum", "max"):
                    continue
                found = of(RANK, count, dtype)
                dist.reduce(found, SIZE - 1, op)
                expect(found, wanted if RANK == SIZE - 1 else of(RANK, count, dtype), ("reduce", dtype))
                inputs = [of(RANK, count, dtype, salt) for salt in range(SIZE)]
                found = torch.empty(count, dtype=dtype)
                dist.reduce_scatter(found, inputs, op)
                wanted_here = [of(rank, count, dtype, RANK) for rank in range(SIZE)]
                if count:
                    expect(found, reference(wanted_here), ("reduce_scatter", dtype, count))
                    dist.reduce_scatter_single(found, torch.cat(inputs), op)
                    expect(found, reference(wanted_here), ("reduce_scatter_single", dtype, count))


def check_moves() -> None:
    for dtype in (*DTYPES, torch.complex64, torch.uint16):
        for count in COUNTS:
            mine, theirs = of(RANK, count, dtype), everyone(count, dtype)
            for root in (0, SIZE - 1):
                found = mine.clone()
                dist.broadcast(found, root)
                expect(found, theirs[root], ("broadcast", root, dtype, count))
                into = [torch.empty_like(mine) for _ in range(SIZE)] if root == RANK else None
                dist.gather(mine, into, dst=root)
                for rank, piece in enumerate(into or []):
                    expect(piece, theirs[rank], ("gather", root, dtype, count))
                found = torch.empty_like(mine)
                dist.scatter(found, theirs if root == RANK else None, src=root)
                expect(found, mine, ("scatter", root, dtype, count))
            into = [torch.empty_like(mine) for _ in range(SIZE)]
            dist.all_gather(into, mine)
            for rank, piece in enumerate(into):
                expect(piece, theirs[rank], ("all_gather", dtype, count))
            whole = torch.empty(SIZE * count, dtype=dtype)
            dist.all_gather_single(whole, mine)
            expect(whole, torch.cat(theirs), ("all_gather_single", dtype, count))
            into = [torch.empty_like(mine) for _ in range(SIZE)]
            dist.all_to_all(into, [of(RANK, count, dtype, salt) for salt in range(SIZE)])
            for rank, piece in enumerate(into):
                expect(piece, of(rank, count, dtype, RANK), ("all_to_all", dtype, count))


def check_uneven() -> None:
    for count in (0, 3, 40_000):
        sizes = [count + 5 * rank for rank in range(SIZE)]
        into = [torch.empty(size) for size in sizes]
        dist.all_gather(into, of(RANK, sizes[RANK], torch.float32))
        for rank, piece in enumerate(into):
            expect(piece, of(rank, sizes[rank], torch.float32), ("all_gather uneven", count))
        # What rank a sends b is a row longer for each of a + 2b.
        sent = [count // 10 + RANK + 2 * to for to in range(SIZE)]
        gets = [count // 10 + source + 2 * RANK for source in range(SIZE)]
        rows = torch.cat([of(RANK, 3 * n, torch.float32, to).view(n, 3) for to, n in enumerate(sent)])
        found = torch.empty(sum(gets), 3)
        dist.all_to_all_single(found, rows, gets, sent)
        wanted = torch.cat([of(s, 3 * n, torch.float32, RANK).view(n, 3) for s, n in enumerate(gets)])
        expect(found, wanted, ("all_to_all_single uneven", count))
        inputs = [of(RANK, size, torch.float32, to) for to, size in enumerate(sizes)]
        found = torch.empty(sizes[RANK])
        dist.reduce_scatter(found, inputs)
        wanted = add([of(rank, sizes[RANK], torch.float32, RANK) for rank in range(SIZE)])
        expect(found, wanted, ("reduce_scatter uneven", count))


def check_strides() -> None:
    """Tensors that are not in one piece are treated as what they show."""
    for n in (3, 300):
        wide = torch.full((n, 2 * n), -1.0)
        wide[:, ::2] = of(RANK, n * n, torch.float32).view(n, n)
        view, wanted = wide[:, ::2], add(everyone(n * n, torch.float32)).view(n, n)
        dist.all_reduce(view)
        expect(view, wanted, "all_reduce of a strided view")
        expect(wide[:, 1::2], torch.full((n, n), -1.0), "what lies between")
        turned = of(RANK, n * n, torch.float32).view(n, n).t()
        dist.broadcast(turned, 0)
        expect(turned, of(0, n * n, torch.float32).view(n, n).t(), "broadcast of a transposed one")
        if RANK == 0:
            dist.send(view.t(), 1)
        if RANK == 1:
            into = torch.zeros(n, 2 * n)[:, 1::2]
            dist.recv(into, 0)
            expect(into, wanted.t(), "send and recv of strided ones")


def check_point_to_point() -> None:
    for count in COUNTS:
        mine = of(RANK, count, torch.float32)
        right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        found = torch.empty(count)
        ops = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, found, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        expect(found, of(left, count, torch.float32), ("ring", count))
        # Tags are matched, whatever the order.
        if RANK == 0:
            works = [dist.isend(mine + tag, 1, tag=tag) for tag in range(5)]
            for work in works:
                work.wait()
        if RANK == 1:
            into = [torch.empty(count) for _ in range(5)]
            works = [dist.irecv(into[tag], 0, tag=tag) for tag in reversed(range(5))]
            for work in works:
                work.wait()
            for tag in range(5):
                expect(into[tag], of(0, count, torch.float32) + tag, ("tag", tag, count))
        # From anyone.
        if RANK == 0:
            seen = set()
            for _ in range(SIZE - 1):
                found = torch.empty(count)
                source = dist.recv(found)
                expect(found, of(source, count, torch.float32), ("from anyone", source, count))
                seen.add(source)
            assert seen == set(range(1, SIZE)), seen
        else:
            dist.send(mine, 0)
        dist.barrier()


def check_async_and_groups() -> None:
    tensors = [of(RANK, count + i, torch.float32) for i in range(10) for count in (5, 50_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    results = [work.get_future().wait() for work in works[::2]]
    for work in works:
        work.wait()
        assert work.is_completed()
    for index, tensor in enumerate(tensors):
        expect(tensor, add(everyone(tensor.numel(), torch.float32)), ("async", index))
    expect(results[1][0], tensors[2], "what the future holds")

    with dist._coalescing_manager(async_ops=True) as manager:
        pieces = [of(RANK, 100 * (i + 1), torch.float32) for i in range(4)]
        for piece in pieces:
            dist.all_reduce(piece)
    manager.wait()
    for piece in pieces:
        expect(piece, add(everyone(piece.numel(), torch.float32)), "coalesced")
    cpu = torch.device("cpu")
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        piece = of(RANK, 1000, torch.float32)
        dist.broadcast(piece, 0)
        other = of(RANK, 2000, torch.float32)
        dist.all_reduce(other)
    manager.wait()
    expect(piece, of(0, 1000, torch.float32), "coalesced broadcast")
    expect(other, add(everyone(2000, torch.float32)), "coalesced all_reduce")

    # Several groups at once, from several threads.
    import threading

    groups = [dist.new_group(list(range(SIZE))) for _ in range(3)]
    wrong: list[str] = []

    def work_in(group: dist.ProcessGroup, salt: int) -> None:
        try:
            for step in range(50):
                tensor = of(RANK, 10 + 997 * (step % 9), torch.float32, salt)
                dist.all_reduce(tensor, group=group)
                wanted = add([of(r, tensor.numel(), torch.float32, salt) for r in range(SIZE)])
                expect(tensor, wanted, ("group", salt, step))
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work_in, args=(group, i)) for i, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong

    halves = [list(range(0, SIZE, 2)), list(range(1, SIZE, 2))]
    subgroup = dist.split_group(split_ranks=halves)
    members = halves[RANK % 2]
    if len(members) > 1:
        tensor = of(RANK, 777, torch.float32)
        dist.all_reduce(tensor, group=subgroup)
        expect(tensor, add([of(rank, 777, torch.float32) for rank in members]), "split_group")

    objects: list[object] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * RANK})
    assert objects == [{"rank": rank, "text": "x" * rank} for rank in range(SIZE)]
    box: list[object] = [{"from": RANK}]
    dist.broadcast_object_list(box, src=1)
    assert box == [{"from": 1}]
    dist.monitored_barrier(timeout=timedelta(seconds=20))


CHECKS = {
    "reductions": check_reductions,
    "moves": check_moves,
    "uneven": check_uneven,
    "strides": check_strides,
    "point_to_point": check_point_to_point,
    "async_and_groups": check_async_and_groups,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("ccl", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT", "60"))))
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    for name in sys.argv[1:] or CHECKS:
        CHECKS[name]()
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0:
        print(json.dumps(backend.facts()))


if __name__ == "__main__":
    main()
