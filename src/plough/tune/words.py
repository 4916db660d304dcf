"""A result as rows and sentences. Pure: what they are drawn with is the command line's business."""

from __future__ import annotations

from plough.report import ONE_BUCKET
from plough.tune.candidates import Setting
from plough.tune.store import Measured, Record

__all__ = ["HEADERS", "bucket_cell", "conclusion", "headline", "in_ms", "ranks_words", "rows"]

HEADERS = ("threads", "workers", "buckets", "step", "of default", "")


def headline(record: Record) -> str:
    load = record.workload
    shape = f"{load.batch} x {load.seq} tokens a rank, {load.precision}"
    return f"{record.title}, {ranks_words(record.ranks)} on {record.host}, {shape}"


def rows(record: Record) -> list[tuple[str, ...]]:
    """Every setting in the order it was measured in."""
    base = next(one.ms for one in record.measured if one.setting == record.default)
    return [
        (
            str(one.setting.threads),
            str(one.setting.workers),
            bucket_cell(one.setting),
            "failed" if one.ms is None else in_ms(one.ms),
            "" if one.ms is None or base is None else f"{one.ms / base:.3f}",
            _mark(record, one),
        )
        for one in record.measured
    ]


def _mark(record: Record, one: Measured) -> str:
    marks = [
        one.error or "",
        "the default" if one.setting == record.default else "",
        "<- chosen" if one.setting == record.chosen else "",
    ]
    return " ".join(filter(None, marks))


def conclusion(record: Record) -> str:
    """How the choice was made."""
    verdict = record.verdict
    if record.best == record.default:
        return "Nothing was faster than the default, which stays."
    if verdict is None:
        return f"{record.best}: failed when it met the default again, which stays."
    gain = f"{100 * abs(verdict.gain):.1f} % {'faster' if verdict.gain >= 0 else 'slower'}"
    met = (
        f"{record.best}, against the default {verdict.rounds} times in turns: "
        f"{in_ms(verdict.best_ms)} a step against {in_ms(verdict.default_ms)}, {gain}; "
        f"single rounds are up to {100 * verdict.noise:.1f} % away from that"
    )
    if verdict.holds:
        return f"{met}. Chosen."
    return f"{met}. That is no gain to rely on: the default stays."


def bucket_cell(setting: Setting) -> str:
    if setting.bucket_mb is None:
        return "as by default"
    return "one" if setting.bucket_mb >= ONE_BUCKET else f"{setting.bucket_mb} MiB"


def in_ms(ms: float) -> str:
    """Milliseconds as people read them: 12.3 ms, 456 ms, 12.34 s."""
    return f"{ms / 1000:.2f} s" if ms >= 10_000 else f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def ranks_words(number: int) -> str:
    return f"{number} rank{'s' * (number > 1)}"
