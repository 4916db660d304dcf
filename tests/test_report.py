"""What really ran: the block at the end of a job, and the files it is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from plough.errors import LaunchError
from plough.report import ONE_BUCKET, RankFacts, ranges, read_facts, render_block, write_facts


def facts(rank: int, **changes: Any) -> RankFacts:
    values: dict[str, Any] = {
        "rank": rank,
        "host": "node1",
        "pid": 100 + rank,
        "world_size": 2,
        "backend": "gloo",
        "device": "cpu",
        "threads": 23,
        "cpus": tuple(range(24 * rank + 1, 24 * rank + 24)),
        "openmp": "GNU (libgomp.so.1)",
        "allocator": "tcmalloc",
        "memory": f"bind:{rank}",
    }
    return RankFacts(**{**values, **changes})


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), "not bound"),
        ((3,), "3"),
        ((0, 1), "0-1"),
        ((0, 1, 2, 5), "0-2,5"),
        ((5, 2, 1, 0), "0-2,5"),
        ((0, 2, 4), "0,2,4"),
        ((1, 1, 2), "1-2"),
    ],
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_a_block_of_two_ranks(snapshot: SnapshotAssertion) -> None:
    trained = {"steps": 120, "samples_per_second": 31.25, "seconds": 61.24, "precision": "bf16 autocast"}
    assert render_block([facts(0, **trained), facts(1, **trained)]) == snapshot


@pytest.mark.parametrize(
    ("bucket_mb", "words"),
    [
        (None, "world size 2, backend gloo"),
        (50, "world size 2, backend gloo, gradients in buckets of 50 MiB"),
        (ONE_BUCKET, "world size 2, backend gloo, gradients in one bucket"),
    ],
)
def test_buckets_are_said_where_they_are_not_as_by_default(bucket_mb: int | None, words: str) -> None:
    assert f"  group      {words}\n" in render_block([facts(0, bucket_mb=bucket_mb)])


def test_a_block_of_one_process_that_did_not_train(snapshot: SnapshotAssertion) -> None:
    alone = facts(0, world_size=1, backend=None, memory="first touch", seconds=0.5, cpus=())
    assert render_block([alone]) == snapshot


def test_what_differs_is_said_by_rank(snapshot: SnapshotAssertion) -> None:
    three = [
        facts(0, host="node1"),
        facts(1, host="node2", threads=11, problems=("memory could not be bound", "same")),
        facts(3, host="node1", allocator="glibc", problems=("same",)),
    ]
    assert render_block(three) == snapshot


def test_cores_of_many_ranks_are_cut_short_aloud() -> None:
    block = render_block([facts(rank, cpus=(rank,)) for rank in range(20)])
    cores = next(line for line in block.splitlines() if "cores" in line)
    assert cores.endswith("rank 15: 15; and 4 more ranks")


def test_facts_read_back_in_rank_order(tmp_path: Path) -> None:
    written = [facts(rank, precision="fp32", problems=("né",)) for rank in (10, 2, 0)]
    for one in written:
        write_facts(tmp_path, one)
    assert read_facts(tmp_path) == sorted(written, key=lambda one: one.rank)
    assert read_facts(tmp_path / "none") == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"rank": "0"}', b'"\xff"'])
def test_garbled_facts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "facts-0.json").write_bytes(content)
    with pytest.raises(LaunchError, match=r"facts-0\.json"):
        read_facts(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([((0,), 1), ((1,), 1)], None),
        ([((0, 1), 2), ((0, 1), 2)], "4 threads took turns on 2 cores of h"),
        ([((0,), 23)], "23 threads took turns on 1 core of h"),
        ([((), 8), ((), 8)], None),  # not bound: nobody knows which cores they had
    ],
)
def test_ranks_that_shared_cores_are_a_problem(
    ranks: list[tuple[tuple[int, ...], int]], problem: str | None
) -> None:
    block = render_block([facts(i, host="h", cpus=c, threads=t) for i, (c, t) in enumerate(ranks)])
    assert ("took turns" in block) == (problem is not None)
    assert problem is None or problem in block
