"""Which settings are worth measuring, in which order, and whether the best one is better for good. Pure.

Knows nothing of how a setting is measured: it is handed a function that says how long a step takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Annotated

import msgspec
from msgspec.structs import replace

from plough.errors import PlanError
from plough.plan import PlanRequest, Tuned, make_plan
from plough.plan.tuned import user_decided
from plough.report import ONE_BUCKET, bucket_words
from plough.topology.machine import Machine

__all__ = ["Setting", "Space", "Verdict", "bucket_sizes", "compare", "judge", "search", "space_of"]

FEWER = 2
"""How many threads below one per core are tried."""
WORKERS = (1, 2, 4)
BUCKETS = (5, 10, 50, 100, ONE_BUCKET)
LEAST_GAIN = 0.01
"""A gain that is not worth a file of its own, however sure it is."""

Count = Annotated[int, msgspec.Meta(ge=1, le=ONE_BUCKET)]
Measure = Callable[["Setting"], float]


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job is started with. threads, workers: of each rank.

    reserve_cores: per socket, what makes the plan have so many threads; None: the plan has them by itself.
    bucket_mb: None: torch's own, a first bucket of 1 MiB and then 25.
    """

    threads: Count
    workers: Count
    reserve_cores: Annotated[int, msgspec.Meta(ge=0)] | None = None
    bucket_mb: Count | None = None

    def __str__(self) -> str:
        buckets = "buckets as by default" if self.bucket_mb is None else bucket_words(self.bucket_mb)
        return f"threads {self.threads}, workers {self.workers}, {buckets}"

    def tuned(self, default: Setting, why: str) -> Tuned:
        """As a plan takes it: what differs from the default."""
        return Tuned(
            why=why,
            reserve_cores=self.reserve_cores,
            ccl_worker_count=None if self.workers == default.workers else self.workers,
            bucket_mb=self.bucket_mb,
        )


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """pairs: threads x workers, the default first. buckets: whether their size is to be found too.

    fixed: what the user has decided, as the flag or variable that did.
    """

    ranks: int
    pairs: tuple[Setting, ...]
    buckets: bool
    fixed: tuple[str, ...] = ()

    @property
    def default(self) -> Setting:
        return self.pairs[0]

    @property
    def most(self) -> int:
        """Settings to measure, at most, before the best meets the default again."""
        return len(self.pairs) + self.buckets * len(BUCKETS)


def space_of(machine: Machine, request: PlanRequest) -> Space:
    """The settings that make sense for the ranks that the request gets here.

    Raises PlanError when it cannot be met, or leaves nothing to choose.
    """
    plan = make_plan([machine], request)
    threads_by, workers_by, bucket_by = user_decided(request)
    first = plan.ranks[0]
    threads = {first.threads: None} if threads_by else _threads(machine, request)
    given = request.ccl_worker_count or 1
    if workers_by:
        text = first.environment.get(workers_by, str(given))
        workers = [int(text) if text.isdecimal() else given]
    else:
        workers = [count for count in WORKERS if count <= max(threads)]
    if plan.world_size == 1:
        workers = workers[:1]  # there is nobody to talk to
    pairs = [
        Setting(threads=number, workers=count, reserve_cores=reserve)
        for number, reserve in threads.items()
        for count in workers
    ]
    buckets = plan.world_size > 1 and bucket_by is None
    if len(pairs) == 1 and not buckets:
        raise PlanError(
            f"{machine.hostname}: there is nothing to tune: {_why_nothing(plan.world_size, threads_by)}",
            hint="ask for more ranks, or leave out the flags and variables that decide",
        )
    decided = (threads_by, workers_by, bucket_by)
    return Space(
        ranks=plan.world_size,
        pairs=tuple(pairs),
        buckets=buckets,
        fixed=tuple(name for name in decided if name),
    )


def _threads(machine: Machine, request: PlanRequest) -> dict[int, int | None]:
    """Threads per rank -> cores to reserve: what the plan has by itself (None), then from all cores down."""
    default = make_plan([machine], request)
    found: dict[int, int | None] = {default.ranks[0].threads: None}
    most = 0
    for reserve in itertools.count():
        try:
            plan = make_plan([machine], replace(request, tuned=Tuned(why="", reserve_cores=reserve)))
        except PlanError:
            break
        threads = plan.ranks[0].threads
        most = most or threads
        if plan.world_size != default.world_size or threads < most - FEWER:
            break
        found.setdefault(threads, reserve)
    return found


def _why_nothing(ranks: int, threads_by: str | None) -> str:
    if ranks > 1:
        return "all of it is set already"
    if threads_by:
        return f"{threads_by} decides the threads, and one rank has nobody to talk to"
    return "one rank of one core has one thread, and nobody to talk to"


def bucket_sizes(gradient_mb: float) -> list[int]:
    """MiB to try for a model with so many MiB of gradients; all beyond that are one bucket."""
    return [size for size in BUCKETS if size < gradient_mb or size == ONE_BUCKET]


def search(space: Space, measure: Measure, buckets: Callable[[], Iterable[int]]) -> Setting:
    """The setting with the least cost: threads and workers first, then with the best of these the buckets.

    measure: the cost, infinite for a setting that does not work. buckets: asked once something is measured.
    No setting is measured twice.
    """
    costs = {setting: measure(setting) for setting in space.pairs}
    best = min(costs, key=lambda setting: costs[setting])
    for size in buckets() if space.buckets else ():
        setting = replace(best, bucket_mb=size)
        costs[setting] = measure(setting)
    return min(costs, key=lambda setting: costs[setting])


def compare(
    default: Setting, best: Setting, measure: Measure, *, rounds: int
) -> tuple[list[float], list[float]]:
    """The costs of both, measured in turns: whatever else the machine does, it does to both."""
    costs: dict[Setting, list[float]] = {default: [], best: []}
    for turn in range(rounds):
        # There and back, so that neither always comes after the other.
        for setting in (default, best) if turn % 2 == 0 else (best, default):
            costs[setting].append(measure(setting))
    return costs[default], costs[best]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """gain: by which share the best setting's steps are shorter. noise: how far a single round was from that.

    default_ms, best_ms: medians over the rounds. holds: whether the gain is to be believed.
    """

    gain: float
    noise: float
    default_ms: float
    best_ms: float
    rounds: int

    @property
    def holds(self) -> bool:
        return self.gain > max(self.noise, LEAST_GAIN)


def judge(default: Sequence[float], best: Sequence[float]) -> Verdict | None:
    """Of the costs of both in each round; None when one of them failed.

    Each round is a comparison of its own, so that a machine that slows down slows down both. The gain is
    the median of the rounds, the noise the farthest that any round is from it.
    """
    if not all(map(math.isfinite, (*default, *best))):
        return None
    gains = [1 - mine / other for mine, other in zip(best, default, strict=True)]
    gain = median(gains)
    return Verdict(
        gain=round(gain, 4),
        noise=round(max(abs(one - gain) for one in gains), 4),
        default_ms=median(default),
        best_ms=median(best),
        rounds=len(gains),
    )
