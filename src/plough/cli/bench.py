"""`plough bench`: measure what Plough is made of. How that is done is `plough.bench`'s to say."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from plough.bench.figures import latency_chart
from plough.bench.plot import to_svg
from plough.bench.png import require_matplotlib, write_png
from plough.bench.request import Request, add_request_arguments, request_of
from plough.bench.result import Result, load_result
from plough.bench.table import facts, legend, tables
from plough.cli.options import add_plan_options, plan_request, user_settings
from plough.cli.output import emit, note, table, warn
from plough.cli.run import announce, conclude, with_mpirun
from plough.errors import LaunchError, UsageError
from plough.files import write_text_atomic
from plough.launchers import LAUNCHERS, Command, job_folder, submit
from plough.plan import LaunchPlan, PlanRequest, make_plan
from plough.topology import Machine, probe

__all__ = ["add_arguments", "render", "run"]

RANKS = "plough.bench.ranks"
RESULT = "collectives.json"
DRY_RUN_FOLDER = Path("JOB_FOLDER")

COLLECTIVES = """\
Latency and bus bandwidth of every collective of torch.distributed, with Plough's ccl beside gloo and, where
it is installed, oneCCL. All are measured in the same ranks in one run, in turns, so that whatever else
happens on the machine happens to all of them; each result is checked once by value before it is timed.
"""
EPILOG = """\
examples:
  plough bench collectives --ranks 2
  plough bench collectives --collectives all_reduce --sizes 64,4KiB,25MiB --plot latency.svg
  plough bench collectives --ranks 2 --json > before.json
  plough bench collectives --show before.json --plot before.svg
"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    collectives = subjects.add_parser(
        "collectives",
        help="latency and bandwidth of ccl, gloo and oneCCL, side by side",
        description=COLLECTIVES,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    collectives.usage = "plough bench collectives [--ranks N] [options]"
    add_request_arguments(collectives)
    results = collectives.add_argument_group("results")
    results.add_argument(
        "--json", action="store_true", help="everything that was measured, as JSON on stdout"
    )
    results.add_argument("--plot", metavar="FILE", type=Path, help="draw latency over size: .svg, or .png")
    results.add_argument(
        "--show", metavar="FILE", type=Path, help="measure nothing: show (or draw) what --json wrote"
    )
    launching = collectives.add_argument_group("launching")
    launching.add_argument(
        "--launcher",
        choices=sorted(LAUNCHERS),
        help="local: torch.distributed.elastic; mpi: the mpirun that is found (default: mpi where it is "
        "Intel's, under which oneCCL is at its best, else local)",
    )
    launching.add_argument(
        "--mpirun", metavar="PATH", help="the mpirun to use with --launcher mpi, instead of the one found"
    )
    launching.add_argument(
        "--hosts", metavar="FILE", type=Path, help="a host a line: say which command measures between them"
    )
    launching.add_argument("--dry-run", action="store_true", help="print what would be started, and stop")
    add_plan_options(collectives)


def run(options: argparse.Namespace) -> int:
    return SUBJECTS[options.subject](options)


def _collectives(options: argparse.Namespace) -> int:
    request = request_of(options)
    if options.plot is not None:
        _check_plot(options.plot)
    if options.show is not None:
        return _give(load_result(options.show), options)
    if options.hosts is not None:
        raise _several_hosts(options.hosts, options.ranks or 1, request)
    if options.mpirun is not None and options.launcher != "mpi":
        raise UsageError("--mpirun goes with --launcher mpi", hint="add --launcher mpi")
    machine = probe() if options.mpirun is None else with_mpirun(probe(), options.mpirun)
    launcher = options.launcher or ("mpi" if machine.software.mpi_flavour == "intel" else "local")
    plan = _plan(machine, plan_request(options, user_settings()))
    if options.dry_run:
        command = _command(request, DRY_RUN_FOLDER / RESULT)
        emit(LAUNCHERS[launcher](plan, command, machine=machine, job_dir=DRY_RUN_FOLDER).shell())
        return 0
    announce(plan, machine, launcher)
    with job_folder() as folder:
        command = _command(request, folder / RESULT)
        rendered = LAUNCHERS[launcher](plan, command, machine=machine, job_dir=folder)
        code = conclude(submit(rendered, plan, folder), "bench collectives")
        if code != 0:
            return code
        result = load_result(folder / RESULT)
    return _give(result, options)


def _plan(machine: Machine, request: PlanRequest) -> LaunchPlan:
    """As for training, but one rank has nobody to talk to: then two, unless the user said one."""
    plan = make_plan([machine], request)
    if plan.world_size > 1:
        return plan
    if request.ranks is None and request.ranks_per_socket is None and request.ranks_per_node is None:
        return make_plan([machine], replace(request, ranks=2))
    raise UsageError("one rank has nobody to talk to", hint="start at least two: --ranks 2")


def _command(request: Request, output: Path) -> Command:
    arguments = ("--output", str(output), *request.arguments())
    return Command(target=RANKS, arguments=arguments, module=True, compat=False)


def _give(result: Result, options: argparse.Namespace) -> int:
    emit(result.to_json() if options.json else render(result))
    for text in result.setup.notes if options.json else ():
        warn(text)
    if options.plot is not None:
        chart = latency_chart(result)
        if options.plot.suffix == ".png":
            write_png(chart, options.plot)
        else:
            write_text_atomic(options.plot, to_svg(chart))
        note(f"drawn in {options.plot}")
    return 0


def render(result: Result) -> str:
    """Everything a terminal shows."""
    parts = [table(("", ""), facts(result.setup)).lstrip("\n")]
    return "\n".join([*parts, *(f"{one}\n" for one in tables(result)), *legend(result)])


def _check_plot(path: Path) -> None:
    """Before minutes of measuring, not after."""
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {path}: the name must end in .svg or .png")
    if path.suffix == ".png":
        require_matplotlib()
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")


def _several_hosts(file: Path, per_host: int, request: Request) -> LaunchError:
    """Plough starts ranks on one host so far; mpirun does the rest, and `plough exec` each rank's part."""
    try:
        lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"--hosts {file}: {reason}") from error
    hosts = [line.split()[0].split(":")[0] for line in lines if line]
    if not hosts:
        raise UsageError(f"--hosts {file}: no host is named", hint="one a line")
    start = [
        *("mpirun", "-f", str(file), "-ppn", str(per_host), "-n", str(per_host * len(hosts))),
        *("-genv", "MASTER_ADDR", hosts[0], "plough", "exec", "--no-compat", "-m", RANKS),
        *("--output", RESULT, *request.arguments()),
    ]
    return LaunchError(
        "--hosts: Plough itself starts ranks on one host only; Intel MPI's mpirun starts them on several",
        hint=f"{shlex.join(start)}\nand then, on {hosts[0]}: plough bench collectives --show {RESULT}",
    )


SUBJECTS: dict[str, Callable[[argparse.Namespace], int]] = {"collectives": _collectives}
