"""`plough plan`: which rank would get what, and why, as words or JSON."""

from __future__ import annotations

import argparse

from plough.cli.options import add_plan_options, plan_request, user_settings
from plough.cli.output import emit, table
from plough.cli.tuned import add_tuned_option, plan_as_tuned
from plough.contract import Env
from plough.plan import LaunchPlan
from plough.report import ranges
from plough.topology import Machine, probe

__all__ = ["add_arguments", "render", "run"]

EPILOG = """\
examples:
  plough probe --json > node.json          on a machine of the kind you will get
  plough plan --machine node.json          anywhere
"""
LONG = 60
"""Characters from which a list is shortened, and the entries of it that are shown."""
HEAD, TAIL = 5, 2


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EPILOG
    add_plan_options(parser)
    add_tuned_option(parser)
    parser.add_argument(
        "--machine", metavar="FILE.json", help="plan for the machine `plough probe --json` described"
    )
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON")


def run(options: argparse.Namespace) -> int:
    # This shell's variables say nothing about a machine we are not on.
    machine, user = (Machine.load(options.machine), {}) if options.machine else (probe(), user_settings())
    plan, _ = plan_as_tuned(machine, plan_request(options, user), tuned=options.tuned)
    emit(plan.to_json() if options.json else render(plan))
    return 0


def render(plan: LaunchPlan) -> str:
    """The plan as a person reads it: ranks, reasons, variables, warnings."""
    ranks = [
        (
            str(rank.rank),
            rank.host,
            ranges(rank.sockets) if rank.cpus else "any",
            ranges(rank.cpus) if rank.cpus else "not bound",
            str(rank.threads),
            str(rank.memory),
        )
        for rank in plan.ranks
    ]
    parts = [
        table(("rank", "host", "socket", "cores", "threads", "memory"), ranks),
        "why\n" + "".join(f"  {reason}\n" for reason in plan.reasons),
        table(("variable", "value", "because"), _settings(plan)),
    ]
    if plan.warnings:
        parts.append("warnings\n" + "".join(f"  {warning}\n" for warning in plan.warnings))
    return "\n".join(parts).rstrip()


def _settings(plan: LaunchPlan) -> list[tuple[str, str, str]]:
    """A variable with one value for all ranks takes a line, another takes one per rank."""
    rows: list[tuple[str, str, str]] = []
    names = dict.fromkeys(s.name for rank in plan.ranks for s in rank.settings)
    for name in names:
        found = [(rank.rank, s) for rank in plan.ranks for s in rank.settings if s.name == name]
        if len({s.value for _, s in found}) == 1:
            rows.append((name, _short(found[0][1].value), found[0][1].why))
            continue
        rows.append((name, "", found[0][1].why))
        rows += [(f"  rank {rank}", _short(s.value), "") for rank, s in found]
    if plan.world_size > 1 and Env.MASTER_PORT not in names:
        rows.append((Env.MASTER_PORT, "a free port", "chosen at launch"))
    return rows


def _short(value: str) -> str:
    """Long lists of cores keep their ends; --json has them whole."""
    parts = value.split(",")
    if len(value) <= LONG or len(parts) <= HEAD + TAIL:
        return value
    return ",".join([*parts[:HEAD], "...", *parts[-TAIL:]])
