"""`plough run` and `plough train`: plan, render, start, and say how it ended."""

from __future__ import annotations

import argparse
import importlib
import shutil
import signal
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plough.cli.exec import add_command, add_command_arguments, command_of, split_command
from plough.cli.options import add_plan_options, plan_request, user_settings
from plough.cli.output import emit, note, warn
from plough.cli.tuned import add_tuned_option, plan_as_tuned
from plough.errors import LaunchError, UsageError
from plough.launchers import LAUNCHERS, Command, JobResult, Rendered, job_folder, submit
from plough.plan import LaunchPlan
from plough.report import ranges, render_block
from plough.tasks import TASKS
from plough.topology import Machine, probe
from plough.topology.software import mpi_flavour

__all__ = ["add_arguments", "announce", "conclude", "run", "with_mpirun"]

DRY_RUN_FOLDER = Path("JOB_FOLDER")
STDERR_LINES = 12
SIGNS = {
    "No space left on device": "a disk is full: `df -h` shows which; free some space or write elsewhere",
    "Disk quota exceeded": "a disk quota is used up: free some space or write elsewhere",
    "can't allocate memory": "memory ran out: a smaller --per_device_train_batch_size needs less",
    "MemoryError": "memory ran out: a smaller --per_device_train_batch_size needs less",
}
"""What a rank's last lines may say, and what to do about it."""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    add_plan_options(parser)
    add_tuned_option(parser)
    group = parser.add_argument_group("launching")
    group.add_argument(
        "--launcher",
        choices=sorted(LAUNCHERS),
        default="local",
        help="local: torch.distributed.elastic; mpi: the mpirun that is found (default: local)",
    )
    group.add_argument(
        "--mpirun", metavar="PATH", help="the mpirun to use with --launcher mpi, instead of the one found"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="print what would be started, and start nothing"
    )
    group.add_argument(
        "--json", action="store_true", help="the end-of-job report (or dry run) as JSON on stdout"
    )
    if verb == "train":
        tasks = "".join(f"\n  {name:<4} {task.summary}" for name, task in TASKS.items())
        parser.usage = "plough train [placement and launching options] TASK [task arguments ...]"
        parser.epilog = f"tasks:{tasks}\n\n`plough train TASK --help` explains a task's arguments."
        add_command(parser, "TASK", "what to train, and the task's arguments")
    else:
        parser.usage = "plough run [placement and launching options] [-m] SCRIPT [ARG ...]"
        add_command_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.verb == "train":
        name, arguments = split_command(options)
        if name not in TASKS:
            raise UsageError(f"{name}: no such task", hint=f"there is: {', '.join(sorted(TASKS))}")
        task = TASKS[name]
        if {"-h", "--help"} & set(arguments):
            return int(importlib.import_module(task.module).main(list(arguments)))
        command = Command(target=task.module, arguments=arguments, module=True)
    else:
        command = command_of(options)
    if options.mpirun is not None and options.launcher != "mpi":
        raise UsageError(
            f"--mpirun goes with --launcher mpi, not {options.launcher}", hint="add --launcher mpi"
        )
    machine = probe() if options.mpirun is None else with_mpirun(probe(), options.mpirun)
    plan, said = plan_as_tuned(machine, plan_request(options, user_settings()), tuned=options.tuned)
    if said is not None:
        note(said)
    launcher = LAUNCHERS[options.launcher]
    if options.dry_run:
        return _dry_run(launcher(plan, command, machine=machine, job_dir=DRY_RUN_FOLDER), plan, options.json)
    announce(plan, machine, options.launcher)
    with job_folder() as folder:
        result = submit(launcher(plan, command, machine=machine, job_dir=folder), plan, folder)
    return _report(result, as_json=options.json)


def with_mpirun(machine: Machine, path: str) -> Machine:
    """The machine with the mpirun of the user's choice. Raises UsageError if it is none."""
    mpirun = shutil.which(path)
    if mpirun is None:
        raise UsageError(f"--mpirun {path}: not a program", hint="give the path of an mpirun")
    found = replace(machine.software, mpirun=mpirun, mpi_flavour=mpi_flavour(Path(mpirun)))
    return replace(machine, software=found)


def _dry_run(rendered: Rendered, plan: LaunchPlan, as_json: bool) -> int:
    if as_json:
        emit(msgspec.json.format(msgspec.json.encode({"start": rendered, "plan": plan}), indent=2).decode())
    else:
        emit(rendered.shell())
    return 0


def announce(plan: LaunchPlan, machine: Machine, launcher: str) -> None:
    """What is about to start, and what the plan warns of."""
    first = plan.ranks[0]
    ranks = f"{plan.world_size} rank{'s' * (plan.world_size > 1)}"
    threads = f"{first.threads} thread{'s' * (first.threads > 1)}"
    cores = " | ".join(ranges(rank.cpus) for rank in plan.ranks[:8]) if first.cpus else "not bound"
    more = " | ..." if plan.world_size > 8 else ""
    note(f"{ranks} on {machine.hostname}, {threads} each, cores {cores}{more} (launcher {launcher})")
    for warning in plan.warnings:
        warn(warning)


def _report(result: JobResult, *, as_json: bool) -> int:
    if as_json:
        emit(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    elif result.facts and (result.code == 0 or any(f.steps for f in result.facts)):
        note(render_block(result.facts))
    return conclude(result, "run")


def conclude(result: JobResult, verb: str) -> int:
    """The exit code of a job. Raises LaunchError, with its one diagnosis, if it failed."""
    if result.interrupted:
        note("interrupted; every rank has been ended")
    elif result.failure is not None:
        raise _Failed(result)
    elif result.code != 0:
        log = "".join(f"\n  | {line}" for line in result.log) or " nothing"
        raise LaunchError(
            f"the ranks' launcher ended with an error, and no rank did; it wrote:{log}",
            hint=f"`plough {verb} --dry-run` shows the exact command",
        )
    return result.code


class _Failed(LaunchError):
    """The job's one diagnosis: which rank, where, how, and its last words."""

    def __init__(self, result: JobResult) -> None:
        failure = result.failure
        assert failure is not None
        assert failure.returncode is not None
        self.exit_code = result.code
        self._own = failure.error
        lines = "".join(f"\n  | {line}" for line in failure.stderr[-STDERR_LINES:])
        how, hint = _how_it_ended(failure.returncode)
        hint = hint or next((h for sign, h in SIGNS.items() if sign in lines), None)
        last = f"\nits last lines on stderr:{lines}" if lines else ""
        super().__init__(f"rank {failure.rank} on {failure.host} {how}; the job was ended{last}", hint=hint)

    def render(self) -> str:
        # The rank met an error that explains itself: all ranks met it, so no rank is to blame.
        return self._own if self._own is not None else super().render()


def _how_it_ended(code: int) -> tuple[str, str | None]:
    if code >= 0:
        return f"ended with exit code {code}", None
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hints = {
        "SIGKILL": "the kernel kills the largest process when memory runs out: look at `dmesg` and the "
        "container's memory limit; a smaller --per_device_train_batch_size needs less",
        "SIGSEGV": "a crash in native code; `--allocator none --openmp gnu` rules out the preloads",
        "SIGBUS": "shared memory or a mapped file ran out of space: look at `df -h /dev/shm`",
        "SIGILL": "an instruction this processor does not have: a library built for another machine",
    }
    return f"was killed by {name}", hints.get(name)
