"""The files of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from plough.errors import PlanError
from plough.launchers.records import (
    RankRecord,
    first_failure,
    load_plan,
    read_records,
    save_plan,
    write_record,
)
from plough.plan import make_plan
from tests.machines.trees import described


def record(
    rank: int, code: int | None = None, ended: float | None = None, *, asked: bool = False
) -> RankRecord:
    return RankRecord(
        rank=rank, host="h", pid=10, relay_pid=11, returncode=code, ended=ended, asked=asked, stderr=("né",)
    )


def test_records_read_back_in_rank_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write_record(tmp_path, record(rank))
    write_record(tmp_path, record(2, 3, 5.0))
    assert read_records(tmp_path) == [record(0), record(2, 3, 5.0), record(10)]
    assert read_records(tmp_path / "gone") == []


@pytest.mark.parametrize(
    ("records", "rank"),
    [
        ([], None),
        ([record(0), record(1)], None),
        ([record(0, 0, 1.0)], None),
        ([record(0, 1, 2.0), record(1, -9, 1.0)], 1),
        # Told to stop because another had failed: no fault of theirs, however early.
        ([record(0, -15, 0.5, asked=True), record(1, 1, 1.0)], 1),
        ([record(0, -15, 0.5, asked=True)], None),
    ],
)
def test_the_first_failure(records: list[RankRecord], rank: int | None) -> None:
    found = first_failure(records)
    assert (None if found is None else found.rank) == rank


def test_the_plan_reads_back(tmp_path: Path) -> None:
    plan = make_plan([described("xeon-2x56-snc4")])
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json is not a launch plan"):
        load_plan(tmp_path)
