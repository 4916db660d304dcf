"""Plans for this host with what `plough tune` found, as long as nobody says otherwise."""

from __future__ import annotations

import argparse
import os

from msgspec.structs import replace

from plough.cli.output import note, warn
from plough.errors import PlanError
from plough.plan import LaunchPlan, PlanRequest, make_plan
from plough.plan.tuned import left_to_us, tuned_words
from plough.topology import Machine
from plough.tune.store import find, tuned_folder

__all__ = ["add_tuned_option", "plan_as_tuned"]


def add_tuned_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-tuned",
        dest="tuned",
        action="store_false",
        help="plan without what `plough tune` found for this machine and number of ranks",
    )


def plan_as_tuned(machine: Machine, request: PlanRequest, *, tuned: bool) -> tuple[LaunchPlan, str | None]:
    """The plan, and one sentence about the tuned values in it; None if it is as it would be without.

    Raises PlanError when the request cannot be met. Files that cannot be used are named on stderr.
    """
    plan = make_plan([machine], request)
    if not tuned:
        return plan, None
    found = find(tuned_folder(os.environ), machine, plan.world_size)
    for text in found.notes:
        note(text)
    if found.tuned is None:
        return plan, None
    whole = left_to_us(replace(request, tuned=found.tuned))
    try:
        better = make_plan([machine], whole)
        if better.world_size != plan.world_size:
            raise PlanError(f"it is for {plan.world_size} ranks, and would give {better.world_size}")
    except PlanError as error:
        warn(f"{found.path} does not fit here: {error.cause}; ignored. `plough tune` measures anew")
        return plan, None
    changed = better.ranks != plan.ranks
    return better, tuned_words(whole, better.ranks[0].threads) if changed else None
