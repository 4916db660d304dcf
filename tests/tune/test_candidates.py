"""Which settings are tried where, and that the best one is found, and believed only when it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.contract import Env
from plough.errors import PlanError
from plough.plan import PlanRequest, Tuned, make_plan
from plough.report import ONE_BUCKET
from plough.tune.candidates import Setting, Space, bucket_sizes, compare, judge, search, space_of
from tests.machines.trees import NAMES, described

# machine, request -> (threads, reserved cores) of each, workers, whether buckets; the default first
SPACES: dict[str, tuple[str, dict[str, Any], list[tuple[int, int | None]], list[int], bool]] = {
    "a rank per socket": ("xeon-2x24", {}, [(23, None), (24, 0), (22, 2)], [1, 2, 4], True),
    "two ranks on a socket": (
        "xeon-2x24",
        {"ranks": 4},
        [(11, None), (12, 0), (10, 3)],
        [1, 2, 4],
        True,
    ),
    "one core each": ("vm-2-core", {"ranks": 2}, [(1, None)], [1], True),
    "one rank": ("vm-2-core", {}, [(2, None), (1, 1)], [1], False),
    "a quota": ("pod-8-of-384-quota", {}, [(8, None), (7, 1), (6, 2)], [1], False),
    "two ranks of a quota": (
        "pod-8-of-384-quota",
        {"ranks": 2},
        [(4, None), (3, 1), (2, 3)],
        [1, 2, 4],
        True,
    ),
    "threads asked for": ("xeon-2x24", {"threads": 20}, [(20, None)], [1, 2, 4], True),
    "cores reserved": ("xeon-2x24", {"reserve_cores": 4}, [(20, None)], [1, 2, 4], True),
    "workers asked for": (
        "xeon-2x24",
        {"ccl_worker_count": 3},
        [(23, None), (24, 0), (22, 2)],
        [3],
        True,
    ),
    "threads and workers set": (
        "xeon-2x24",
        {"user_environment": {Env.OMP_NUM_THREADS: "16", Env.CCL_WORKER_COUNT: "2"}},
        [(16, None)],
        [2],
        True,
    ),
    "buckets set": (
        "vm-2-core",
        {"user_environment": {Env.PLOUGH_BUCKET_MB: "7"}},
        [(2, None), (1, 1)],
        [1],
        False,
    ),
}


@pytest.mark.parametrize("case", SPACES)
def test_the_space(case: str) -> None:
    name, request, threads, workers, buckets = SPACES[case]
    space = space_of(described(name), PlanRequest(**request))
    expected = [(number, reserve, count) for number, reserve in threads for count in workers]
    assert [(one.threads, one.reserve_cores, one.workers) for one in space.pairs] == expected
    assert space.buckets == buckets


def test_what_the_user_decided_is_named() -> None:
    request = PlanRequest(
        threads=20, user_environment={Env.CCL_WORKER_COUNT: "many", Env.PLOUGH_BUCKET_MB: "7"}
    )
    with pytest.raises(PlanError, match="nothing to tune: all of it is set already"):
        space_of(described("xeon-2x24"), request)
    request = PlanRequest(threads=20, ccl_worker_count=2)
    assert space_of(described("xeon-2x24"), request).fixed == ("--threads", "--ccl-worker-count")


def test_one_rank_whose_threads_are_set_has_nothing_to_tune() -> None:
    with pytest.raises(PlanError, match="--threads decides the threads, and one rank has nobody to talk to"):
        space_of(described("vm-2-core"), PlanRequest(threads=2))


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_a_plan_with_these_threads(name: str) -> None:
    machine = described(name)
    request = PlanRequest(ranks=2)
    for ranks in (request, PlanRequest()):
        space = space_of(machine, ranks)
        assert len(set(space.pairs)) == len(space.pairs)
        for setting in space.pairs:
            tuned = setting.tuned(space.default, "measured")
            plan = make_plan([machine], PlanRequest(ranks=ranks.ranks, tuned=tuned))
            assert plan.world_size == space.ranks
            assert {rank.threads for rank in plan.ranks} == {setting.threads}
    assert space.default.tuned(space.default, "why") == Tuned(why="why")


@pytest.mark.parametrize(
    ("gradients", "sizes"),
    [
        (0.1, [ONE_BUCKET]),
        (5.0, [ONE_BUCKET]),
        (86.6, [5, 10, 50, ONE_BUCKET]),
        (1300.0, [5, 10, 50, 100, ONE_BUCKET]),
    ],
)
def test_bucket_sizes(gradients: float, sizes: list[int]) -> None:
    assert bucket_sizes(gradients) == sizes


PAIRS = tuple(Setting(threads=t, workers=w) for t in (23, 24, 22) for w in (1, 2, 4))
SPACE = Space(ranks=2, pairs=PAIRS, buckets=True)
THREADS = {23: 100.0, 24: 90.0, 22: 104.0}
WORKERS = {1: 0.0, 2: -5.0, 4: 3.0}
BUCKETS = {None: 0.0, 5: 8.0, 10: 2.0, 50: -4.0, 100: -3.0, ONE_BUCKET: 1.0}


def test_search_finds_the_best_and_measures_nothing_twice() -> None:
    seen: list[Setting] = []

    def cost(setting: Setting) -> float:
        seen.append(setting)
        return THREADS[setting.threads] + WORKERS[setting.workers] + BUCKETS[setting.bucket_mb]

    best = search(SPACE, cost, lambda: bucket_sizes(1000))
    assert best == Setting(threads=24, workers=2, bucket_mb=50)
    assert seen[0] == SPACE.default
    assert len(seen) == len(set(seen)) == SPACE.most
    assert [one.bucket_mb for one in seen[-5:]] == [5, 10, 50, 100, ONE_BUCKET]


@given(st.lists(st.floats(1, 1000), min_size=SPACE.most, max_size=SPACE.most))
def test_search_returns_the_cheapest_of_what_it_measured(costs: list[float]) -> None:
    seen: dict[Setting, float] = {}

    def cost(setting: Setting) -> float:
        assert setting not in seen
        seen[setting] = costs[len(seen)]
        return seen[setting]

    assert seen[search(SPACE, cost, lambda: bucket_sizes(1000))] == min(costs)


def test_where_all_are_equal_or_fail_the_default_stays() -> None:
    assert search(SPACE, lambda _: 1.0, lambda: [5]) == SPACE.default
    only = search(SPACE, lambda one: 1.0 if one == SPACE.default else math.inf, lambda: [5])
    assert only == SPACE.default


def test_buckets_are_left_alone_where_they_are_not_to_be_found() -> None:
    space = Space(ranks=1, pairs=PAIRS, buckets=False)
    best = search(space, lambda one: THREADS[one.threads], lambda: pytest.fail("asked"))
    assert best.bucket_mb is None
    assert space.most == len(PAIRS)


def test_compare_goes_there_and_back() -> None:
    order: list[str] = []
    names = {PAIRS[0]: "d", PAIRS[1]: "b"}

    def cost(setting: Setting) -> float:
        order.append(names[setting])
        return float(len(order))

    assert compare(PAIRS[0], PAIRS[1], cost, rounds=3) == ([1.0, 4.0, 5.0], [2.0, 3.0, 6.0])
    assert "".join(order) == "dbbddb"


# default's times, best's times -> gain, noise, whether it holds
VERDICTS = [
    ([100, 100, 100], [90, 90, 90], 0.1, 0.0, True),
    # Drift that hits both is no noise.
    ([100, 150, 200], [90, 135, 180], 0.1, 0.0, True),
    ([100, 100, 100], [90, 95, 85], 0.1, 0.05, True),
    ([100, 100, 100], [95, 85, 110], 0.05, 0.15, False),
    ([100, 100, 100], [99.5, 99.5, 99.5], 0.005, 0.0, False),
    ([100, 100, 100], [101, 102, 103], -0.02, 0.01, False),
]


@pytest.mark.parametrize(("default", "best", "gain", "noise", "holds"), VERDICTS)
def test_verdict(default: list[float], best: list[float], gain: float, noise: float, holds: bool) -> None:
    verdict = judge(default, best)
    assert verdict is not None
    assert (verdict.gain, verdict.noise) == pytest.approx((gain, noise))
    assert verdict.holds == holds


def test_no_verdict_where_something_failed() -> None:
    assert judge([100, math.inf, 100], [90, 90, 90]) is None
    assert judge([100, 100, 100], [90, 90, math.inf]) is None


@given(st.lists(st.floats(0.95, 1.05), min_size=10, max_size=10))
def test_whatever_is_chosen_won_every_round(factors: list[float]) -> None:
    verdict = judge([100 * one for one in factors[:5]], [100 * one for one in factors[5:]])
    assert verdict is not None
    if verdict.holds:
        assert all(mine < other for mine, other in zip(factors[5:], factors[:5], strict=True))
