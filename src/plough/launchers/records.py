"""The files of one job: plan, a record per rank, facts. A private folder the launcher makes and removes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from plough.files import write_text_atomic
from plough.plan import LaunchPlan

__all__ = ["RankRecord", "first_failure", "load_plan", "read_records", "save_plan", "write_record"]


class RankRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's life as its relay saw it.

    pid: of the rank's Python; relay_pid: of the process that watches it. returncode: as subprocess gives
    it (negative: the signal), None while it runs. ended: seconds since the epoch. asked: it was told to
    stop, so its end is nobody's fault. stderr: its last lines. error: a PloughError it ended with,
    rendered.
    """

    rank: int
    host: str
    pid: int
    relay_pid: int
    returncode: int | None = None
    ended: float | None = None
    asked: bool = False
    stderr: tuple[str, ...] = ()
    error: str | None = None


def save_plan(folder: Path, plan: LaunchPlan) -> None:
    write_text_atomic(folder / "plan.json", plan.to_json())


def load_plan(folder: Path) -> LaunchPlan:
    path = folder / "plan.json"
    return LaunchPlan.from_json(path.read_bytes(), source=str(path))


def write_record(folder: Path, record: RankRecord) -> None:
    write_text_atomic(folder / f"rank-{record.rank}.json", msgspec.json.encode(record).decode())


def read_records(folder: Path) -> list[RankRecord]:
    """What is known of each rank so far, in rank order."""
    records = [msgspec.json.decode(p.read_bytes(), type=RankRecord) for p in folder.glob("rank-*.json")]
    return sorted(records, key=lambda record: record.rank)


def first_failure(records: list[RankRecord]) -> RankRecord | None:
    """The rank that broke the job: the first to end badly without having been told to stop."""
    failed = [r for r in records if r.returncode and not r.asked]
    return min(failed, key=lambda record: record.ended or 0.0, default=None)
