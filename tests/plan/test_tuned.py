"""Tuned values: defaults that show themselves in a plan, and give way to whatever the user sets."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from plough.cli.plan import render
from plough.contract import Env
from plough.plan import LaunchPlan, PlanRequest, Tuned, make_plan
from plough.report import ONE_BUCKET
from tests.machines.trees import described

WHY = "tuned on 2026-12-01 with bert-large-uncased"
TUNED = Tuned(why=WHY, reserve_cores=2, ccl_worker_count=2, bucket_mb=50)


def plan_of(name: str = "xeon-2x24", tuned: Tuned | None = TUNED, **request: Any) -> LaunchPlan:
    return make_plan([described(name)], PlanRequest(tuned=tuned, **request))


def values(plan: LaunchPlan) -> dict[str, str]:
    return plan.ranks[0].environment


def said(plan: LaunchPlan) -> list[str]:
    return [reason for reason in plan.reasons if "--no-tuned" in reason]


def test_they_are_the_defaults(snapshot: SnapshotAssertion) -> None:
    plan = plan_of()
    found = values(plan)
    assert (found["OMP_NUM_THREADS"], found["CCL_WORKER_COUNT"], found["PLOUGH_BUCKET_MB"]) == (
        *("22", "2", "50"),
    )
    # The cores that are left to them are where the workers go.
    assert found["CCL_WORKER_AFFINITY"] == "0,1,24,25"
    assert plan.warnings == ()
    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert render(plan) == snapshot


def test_the_plan_is_the_one_the_flags_would_give() -> None:
    flags = plan_of(tuned=None, reserve_cores=2, ccl_worker_count=2)
    for mine, other in zip(plan_of().ranks, flags.ranks, strict=True):
        assert mine.cpus == other.cpus
        assert mine.environment == {**other.environment, Env.PLOUGH_BUCKET_MB: "50"}


# what the user sets -> threads, workers, buckets in force, what is said to be tuned
USERS: dict[str, tuple[dict[str, Any], tuple[str, str, str | None], str | None]] = {
    "threads": ({"threads": 12}, ("12", "2", "50"), "workers 2, buckets of 50 MiB"),
    "reserved cores": ({"reserve_cores": 4}, ("20", "2", "50"), "workers 2, buckets of 50 MiB"),
    "no reserved cores": ({"reserve_cores": 0}, ("24", "2", "50"), "workers 2, buckets of 50 MiB"),
    "workers": ({"ccl_worker_count": 1}, ("22", "1", "50"), "threads 22, buckets of 50 MiB"),
    "OMP_NUM_THREADS": (
        {"user_environment": {"OMP_NUM_THREADS": "23"}},
        ("23", "2", "50"),
        "workers 2, buckets of 50 MiB",
    ),
    "MKL_NUM_THREADS": (
        {"user_environment": {"MKL_NUM_THREADS": "23"}},
        ("23", "2", "50"),
        "workers 2, buckets of 50 MiB",
    ),
    "CCL_WORKER_COUNT": (
        {"user_environment": {"CCL_WORKER_COUNT": "4"}},
        ("22", "4", "50"),
        "threads 22, buckets of 50 MiB",
    ),
    "PLOUGH_BUCKET_MB": (
        {"user_environment": {"PLOUGH_BUCKET_MB": "7"}},
        ("22", "2", "7"),
        "threads 22, workers 2",
    ),
    "everything": (
        {"threads": 23, "ccl_worker_count": 1, "user_environment": {"PLOUGH_BUCKET_MB": "7"}},
        ("23", "1", "7"),
        None,
    ),
}


@pytest.mark.parametrize("case", USERS)
def test_the_user_wins(case: str) -> None:
    request, (threads, workers, bucket), words = USERS[case]
    plan = plan_of(**request)
    found = values(plan)
    assert found["OMP_NUM_THREADS"] == threads
    assert found["CCL_WORKER_COUNT"] == workers
    assert found.get(Env.PLOUGH_BUCKET_MB) == bucket
    assert said(plan) == ([f"{words}: {WHY}; --no-tuned to ignore"] if words else [])
    # As if nothing had been tuned, where the user decided.
    for setting in plan.ranks[0].settings:
        if setting.name in request.get("user_environment", {}):
            assert "set by you" in setting.why


def test_each_value_says_why() -> None:
    why = {setting.name: setting.why for setting in plan_of().ranks[0].settings}
    assert why["OMP_NUM_THREADS"] == f"one compute thread per core of the rank; {WHY}"
    assert why["CCL_WORKER_COUNT"] == why["PLOUGH_BUCKET_MB"] == WHY
    assert f"2 cores per socket left to the system, {WHY}" in plan_of().reasons


def test_one_bucket() -> None:
    plan = plan_of(tuned=Tuned(why=WHY, bucket_mb=ONE_BUCKET))
    assert said(plan) == [f"one bucket: {WHY}; --no-tuned to ignore"]
    assert values(plan)["OMP_NUM_THREADS"] == "23"


def test_where_the_default_was_best_the_plan_is_the_default() -> None:
    plain, tuned = plan_of(tuned=None), plan_of(tuned=Tuned(why=WHY))
    assert tuned.ranks == plain.ranks
    assert said(tuned) == [f"all as by default: {WHY}; --no-tuned to ignore"]
    assert said(plan_of(tuned=Tuned(why=WHY), threads=12)) == []


def test_one_rank_takes_over_its_threads_alone() -> None:
    plan = plan_of("vm-2-core", Tuned(why=WHY, reserve_cores=1))
    assert values(plan)["OMP_NUM_THREADS"] == "1"
    assert said(plan) == [f"threads 1: {WHY}; --no-tuned to ignore"]


def test_a_quota() -> None:
    plan = plan_of("pod-8-of-384-quota", Tuned(why=WHY, reserve_cores=1))
    assert values(plan)["OMP_NUM_THREADS"] == "7"
    assert f"1 CPU of the quota left to the system, {WHY}" in plan.reasons
