"""`plough tune`: measure settings with a model, and keep the best where `plough run` finds it."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from plough._version import __version__
from plough.bench.progress import duration
from plough.cli.options import add_plan_options, plan_request, user_settings
from plough.cli.output import emit, note, table
from plough.cli.run import announce, conclude, with_mpirun
from plough.errors import LaunchError, PloughError, UsageError
from plough.launchers import LAUNCHERS, JobResult
from plough.topology import probe
from plough.tune.candidates import Setting, Space, bucket_sizes, compare, judge, search, space_of
from plough.tune.measure import Bench, Timing
from plough.tune.store import Measured, Record, file_name, machine_key, save, tuned_folder
from plough.tune.words import HEADERS, bucket_cell, conclusion, headline, in_ms, ranks_words, rows
from plough.tune.workload import add_workload_arguments, workload_of

__all__ = ["add_arguments", "render", "run"]

LEAST_ROUNDS = 3
EPILOG = """\
Threads per rank, CCL_WORKER_COUNT and the size of gradient buckets, found by training your model for a few
steps with each: real ranks, started as `plough run` starts them. Threads and workers come first, then
buckets; at the end the best meets the default in turns, and is kept only if it wins by more than the noise.
What is found holds for this machine and this number of ranks, and `plough run`, `plough train` and
`plough plan` take it from there as defaults: your flags and variables win, and --no-tuned leaves it out.
Leave the machine to it while it measures.

examples:
  plough tune --model bert-large-uncased --precision bf16
  plough tune --model out/model --ranks 4 --seq 512 --batch 4
  plough tune --model out/model --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.usage = "plough tune --model NAME [--ranks N] [options]"
    parser.epilog = EPILOG
    add_workload_arguments(parser)
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="how often the best setting meets the default at the end (default: 5)",
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--output", metavar="FILE", type=Path, help="keep the result there, and not where `plough run` looks"
    )
    results.add_argument("--force", action="store_true", help="write over an --output FILE that is there")
    results.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    launching = parser.add_argument_group("launching")
    launching.add_argument(
        "--launcher",
        choices=sorted(LAUNCHERS),
        default="local",
        help="local: torch.distributed.elastic; mpi: the mpirun that is found (default: local)",
    )
    launching.add_argument(
        "--mpirun", metavar="PATH", help="the mpirun to use with --launcher mpi, instead of the one found"
    )
    launching.add_argument("--dry-run", action="store_true", help="say what would be measured, and stop")
    add_plan_options(parser)


def run(options: argparse.Namespace) -> int:
    workload = workload_of(options)
    if options.rounds < LEAST_ROUNDS:
        raise UsageError(f"--rounds {options.rounds}: fewer than {LEAST_ROUNDS} do not show the noise")
    if options.mpirun is not None and options.launcher != "mpi":
        raise UsageError("--mpirun goes with --launcher mpi", hint="add --launcher mpi")
    machine = probe() if options.mpirun is None else with_mpirun(probe(), options.mpirun)
    request = plan_request(options, user_settings())
    space = space_of(machine, request)
    output = _output(options, file_name(machine, space.ranks))
    bench = Bench(
        machine=machine,
        request=request,
        launcher=options.launcher,
        workload=workload,
        default=space.default,
    )
    if options.dry_run:
        emit(_dry_run(bench, space, options.rounds, output, as_json=options.json))
        return 0
    announce(bench.plan(space.default), machine, options.launcher)
    try:
        record = _Session(bench, space, options.rounds).tune()
    except _Interrupted as interrupted:
        return interrupted.code
    problem = None
    try:
        save(record, output)
    except PloughError as error:
        problem = error  # minutes of measuring are still worth showing
    emit(record.to_json() if options.json else render(record))
    if problem is not None:
        raise problem
    if options.output is None:
        uses = "stays with its defaults" if record.chosen == record.default else "uses it"
        note(f"kept in {output}; `plough run` with {ranks_words(space.ranks)} {uses}")
    else:
        note(f"kept in {output}")
    return 0


def _output(options: argparse.Namespace, name: str) -> Path:
    """Where the result goes. Raises PloughError now for what would be found out after minutes."""
    if options.output is None:
        folder = tuned_folder(os.environ)
        if folder is None:
            raise UsageError("this user has no home folder to keep the result in", hint="give --output FILE")
        path = folder / name
    else:
        path = options.output
        if path.exists() and not options.force:
            raise UsageError(f"--output {path}: is there already", hint="--force writes over it")
        if not path.parent.is_dir():
            raise UsageError(f"--output {path}: there is no folder {path.parent}")
    there = next(one for one in (path.parent, *path.parent.parents) if one.exists())
    if not os.access(there, os.W_OK):
        raise PloughError(f"{there} cannot be written to", hint="give --output FILE in a folder you own")
    return path


class _Interrupted(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class _Session:
    """One run of `plough tune`: measures, says how far it is, and remembers."""

    def __init__(self, bench: Bench, space: Space, rounds: int) -> None:
        self.bench, self.space, self.rounds = bench, space, rounds
        self.measured: list[Measured] = []
        self.first: Timing | None = None
        self.started = time.monotonic()
        self.starts, self.total = 0, space.most + 2 * rounds

    def tune(self) -> Record:
        """Raises LaunchError when the default setting does not work, _Interrupted after Ctrl-C."""
        default = self.space.default
        best = search(self.space, self._search, self._buckets)
        verdict = None
        if best != default:
            self.total = self.starts + 2 * self.rounds
            verdict = judge(*compare(default, best, self._measure, rounds=self.rounds))
        assert self.first is not None
        bench, workload = self.bench, self.bench.workload
        return Record(
            plough=__version__,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            host=bench.machine.hostname,
            machine=machine_key(bench.machine),
            model_name=bench.machine.model_name,
            ranks=self.space.ranks,
            launcher=bench.launcher,
            workload=workload,
            title=workload.title,
            parameters=self.first.parameters,
            backend=self.first.backend,
            versions=self.first.versions,
            default=default,
            best=best,
            verdict=verdict,
            chosen=best if verdict is not None and verdict.holds else default,
            measured=tuple(self.measured),
            fixed=self.space.fixed,
            seconds=round(time.monotonic() - self.started, 1),
        )

    def _buckets(self) -> Sequence[int]:
        assert self.first is not None
        sizes = bucket_sizes(self.first.gradient_mb)
        self.total = self.starts + len(sizes) + 2 * self.rounds
        return sizes

    def _search(self, setting: Setting) -> float:
        result, timing = self._start(setting)
        if timing is None:
            self.measured.append(Measured(setting=setting, error=_why(result)))
            return float("inf")
        self.measured.append(
            Measured(setting=setting, ms=timing.ms, p10=timing.p10, p90=timing.p90, steps=timing.steps)
        )
        return timing.ms

    def _measure(self, setting: Setting) -> float:
        timing = self._start(setting)[1]
        return float("inf") if timing is None else timing.ms

    def _start(self, setting: Setting) -> tuple[JobResult, Timing | None]:
        result, timing = self.bench.measure(setting)
        self.starts += 1
        if result.interrupted:
            raise _Interrupted(conclude(result, "tune"))
        if self.first is None:
            _raise_if_failed(result)  # what fails as it is by default is an error, and not a slow setting
            self.first = timing
        assert self.first is not None
        spent = time.monotonic() - self.started
        left = spent / self.starts * (self.total - self.starts)
        note(
            f"{self.starts:>2} of {self.total}  {setting}: "
            + (f"{in_ms(timing.ms)} a step" if timing is not None else f"failed: {_why(result)}")
            + (f", {timing.ms / self.first.ms:.2f} of the default" if timing and self.starts > 1 else "")
            + (f"; about {duration(left)} left" if left > 0 else "")
        )
        return result, timing


def _raise_if_failed(result: JobResult) -> None:
    try:
        conclude(result, "tune")
    except LaunchError as error:
        error.hint = error.hint and error.hint.replace("--per_device_train_batch_size", "--batch or --seq")
        raise


def _why(result: JobResult) -> str:
    """The first line of a failed job's diagnosis."""
    try:
        conclude(result, "tune")
    except LaunchError as error:
        return error.render().removeprefix("error: ").splitlines()[0]
    return f"exit code {result.code}"


def render(record: Record) -> str:
    """Everything a terminal shows at the end."""
    return f"{headline(record)}\n\n{table(HEADERS, rows(record))}\n{conclusion(record)}"


def _dry_run(bench: Bench, space: Space, rounds: int, output: Path, *, as_json: bool) -> str:
    command = bench.rendered(space.default)
    if as_json:
        found = {"settings": space.pairs, "buckets": space.buckets, "start": command, "output": str(output)}
        return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    pairs = [(str(one.threads), str(one.workers), bucket_cell(one)) for one in space.pairs]
    *sizes, _ = bucket_sizes(float("inf"))
    buckets = f"then, with the best of these: buckets of {', '.join(map(str, sizes))} MiB, and one bucket"
    return "\n".join(
        [
            f"{ranks_words(space.ranks)}; the default first:",
            table(("threads", "workers", "buckets"), pairs),
            *([buckets] if space.buckets else []),
            *([f"decided by you: {', '.join(space.fixed)}"] if space.fixed else []),
            f"then the best against the default, {rounds} times in turns: "
            f"{space.most + 2 * rounds} starts at most",
            f"the result would be kept in {output}",
            "",
            command.shell(),
        ]
    )
