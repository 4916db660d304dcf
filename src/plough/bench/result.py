"""What was measured, as data: JSON in both directions, to be shown, drawn and judged later. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from plough.bench.request import Request
from plough.errors import UsageError

__all__ = ["Measured", "Quantiles", "Result", "Setup", "Timing", "load_result", "quantiles"]


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the times of `repetitions`, in microseconds; between two of them, linearly."""

    repetitions: int
    min: float
    p10: float
    median: float
    p90: float
    p99: float
    max: float


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One backend at one point. us: over all repetitions; rounds: over those of each round, in order.

    algbw, busbw: GB/s by the median, None for a barrier. verified: its result was compared with the right
    one, element for element, before it was timed (a wrong one ends the benchmark).
    """

    backend: str
    us: Quantiles
    rounds: tuple[Quantiles, ...]
    algbw: float | None
    busbw: float | None
    verified: bool


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One point. size: as asked for; bytes: after rounding to whole elements for each rank."""

    collective: str
    dtype: str | None
    size: int
    bytes: int
    timings: tuple[Timing, ...]

    def timing(self, backend: str) -> Timing | None:
        return next((timing for timing in self.timings if timing.backend == backend), None)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what. cores: of each rank, 0 if not bound. launcher: as the ranks see it.

    backends: what each of those measured says of itself. notes: what the reader must know, above all what
    was left out.
    """

    date: str
    model: str
    hosts: tuple[str, ...]
    ranks: int
    cores: tuple[int, ...]
    launcher: str
    kernel: str
    versions: dict[str, str]
    backends: dict[str, dict[str, str]]
    notes: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `plough bench collectives --json` writes. seconds: that all of it took."""

    setup: Setup
    request: Request
    measured: tuple[Measured, ...]
    seconds: float

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def load_result(path: str | Path) -> Result:
    """Read what `to_json` wrote. Raises UsageError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Result)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(
            f"{path} is not a measurement: {error}",
            hint="`plough bench collectives --json > FILE` writes one",
        ) from error


def quantiles(microseconds: Sequence[float]) -> Quantiles:
    """Of at least one time."""
    times = sorted(microseconds)
    at = {name: round(_quantile(times, q), 3) for name, q in _NAMED}
    return Quantiles(repetitions=len(times), **at)


_NAMED = (("min", 0.0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


def _quantile(times: Sequence[float], q: float) -> float:
    place = q * (len(times) - 1)
    low = math.floor(place)
    high = min(low + 1, len(times) - 1)
    return times[low] + (place - low) * (times[high] - times[low])
