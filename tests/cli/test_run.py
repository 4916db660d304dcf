"""`plough run` and `plough train`: what would be started, and how the end of a job reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from plough.cli.main import main
from plough.launchers import JobResult, Rendered
from plough.launchers.records import RankRecord
from plough.plan import LaunchPlan
from plough.report import RankFacts
from plough.topology.machine import Machine, Software
from tests.cli.conftest import Plough
from tests.machines.trees import described


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A folder with train.py, on a host of two sockets with an Intel MPI."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "mpiexec.hydra").write_text("")
    (bin_ / "mpiexec.hydra").chmod(0o755)
    machine = replace(
        described("xeon-2x24"),
        hostname="here",
        software=Software(mpirun=str(bin_ / "mpirun"), mpi_flavour="intel"),
    )
    monkeypatch.setattr("plough.cli.run.probe", lambda: machine)
    return machine


LINES = [
    "run --dry-run train.py --lr 1e-4",
    "run --dry-run --ranks 1 train.py",
    "run --dry-run --launcher mpi train.py --lr 1e-4",
    "run --dry-run --no-compat -m my.train --ranks 7 --help",
    "run --dry-run -- train.py -- --left --alone",
    "train --dry-run qa --do_train --output_dir out",
    "train --dry-run --launcher mpi --ranks-per-socket 2 qa --do_train",
]


@pytest.mark.parametrize("line", LINES)
def test_dry_run(
    line: str, plough: Plough, here: Machine, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = plough(*line.split())
    assert (said.code, said.err) == (0, "")
    assert said.out.replace(str(tmp_path), "HERE") == snapshot


def test_dry_run_with_words_a_shell_would_read(plough: Plough, here: Machine) -> None:
    said = plough("run", "--dry-run", "--ranks", "1", "train.py", "two words", "$HOME", "")
    assert said.out.endswith("train.py 'two words' '$HOME' ''\n")


@pytest.mark.parametrize(
    "line", ["run --json --dry-run train.py", "train --json --dry-run --launcher mpi qa"]
)
def test_dry_run_as_json(line: str, plough: Plough, here: Machine) -> None:
    found = json.loads(plough(*line.split()).out)
    plan = LaunchPlan.from_json(json.dumps(found["plan"]))
    assert [rank.threads for rank in plan.ranks] == [23, 23]
    start = msgspec.convert(found["start"], Rendered)
    assert "PYTHON" in start.argv
    assert start.environment["PLOUGH_JOB_DIR"] == "JOB_FOLDER"


@pytest.mark.parametrize(
    "line", ["run --ranks 99 train.py", "train --threads 0 qa", "run --reserve-cores 24 train.py"]
)
def test_what_cannot_be_planned_is_not_started(
    line: str, plough: Plough, here: Machine, snapshot: SnapshotAssertion
) -> None:
    said = plough(*line.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


def test_an_mpirun_of_the_users_choice(plough: Plough, here: Machine, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun.openmpi"
    mpirun.write_text("")
    mpirun.chmod(0o755)
    said = plough("run", "--dry-run", "--launcher", "mpi", "--mpirun", str(mpirun), "train.py")
    assert said.code == 0
    assert f"{mpirun} --host localhost:2 --bind-to none" in said.out


@pytest.mark.parametrize(
    "line", ["run --mpirun mpirun train.py", "run --launcher mpi --mpirun /nowhere/mpirun train.py"]
)
def test_a_wrong_mpirun(line: str, plough: Plough, here: Machine, snapshot: SnapshotAssertion) -> None:
    said = plough(*line.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


@pytest.mark.parametrize(
    "software", [Software(), Software(mpirun="/opt/bin/mpirun")], ids=["no mpirun", "an unknown mpirun"]
)
def test_no_mpi(
    software: Software,
    plough: Plough,
    here: Machine,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("plough.cli.run.probe", lambda: replace(here, software=software))
    said = plough("run", "--launcher", "mpi", "train.py")
    assert (said.code, said.out) == (2, "")
    assert said.err.split("\n", 1)[-1] == snapshot


FACTS = RankFacts(
    rank=0,
    host="here",
    pid=7,
    world_size=1,
    backend=None,
    device="cpu",
    threads=23,
    cpus=tuple(range(1, 24)),
    openmp="GNU (libgomp.so.1)",
    allocator="glibc, tuned",
    memory="bind:0",
    steps=10,
    seconds=12.34,
)


def ended(code: int, *, returncode: int | None = None, **changes: Any) -> JobResult:
    """A job of two ranks; with a returncode, rank 1 ended it."""
    error = changes.pop("error", None)
    failure = None
    if returncode is not None:
        failure = RankRecord(
            rank=1,
            host="here",
            pid=8,
            relay_pid=9,
            returncode=returncode,
            ended=1.0,
            stderr=tuple(f"line {i}" for i in range(20)) if error is None else (),
            error=error,
        )
    values: dict[str, Any] = {"log": (), "interrupted": False, "facts": (), "seconds": 12.5}
    return JobResult(code=code, failure=failure, **{**values, **changes})


ENDS = {
    "well": ended(0, facts=(FACTS,)),
    "exit code": ended(1, returncode=3),
    "out of memory": ended(1, returncode=-9),
    "crash": ended(1, returncode=-11),
    "full /dev/shm": ended(1, returncode=-7),
    "wrong processor": ended(1, returncode=-4),
    "a signal without a name": ended(1, returncode=-99),
    "an error that explains itself": ended(2, returncode=2, error="error: --fp16: no\n\nhint: use --bf16"),
    "interrupted": ended(130, interrupted=True),
    "the launcher's own end": ended(1, log=("mpirun: no such host", "giving up")),
    "the launcher's silent end": ended(1),
}


@pytest.mark.parametrize("case", sorted(ENDS))
def test_how_the_end_reads(
    case: str, plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("plough.cli.run.submit", lambda *_: ENDS[case])
    said = plough("run", "train.py")
    # mpirun or torchrun failing by itself is a job that could not be started, not a rank that failed.
    assert said.code == (2 if "launcher" in case else ENDS[case].code)
    assert said.out == ""
    assert said.err == snapshot


def test_the_report_as_json(plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.cli.run.submit", lambda *_: ENDS["well"])
    said = plough("run", "--json", "train.py")
    assert msgspec.json.decode(said.out, type=JobResult) == ENDS["well"]
    assert "what ran" not in said.err


def test_warnings_are_said_before_the_start(
    plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("plough.cli.run.submit", lambda *_: ended(0))
    assert plough("run", "train.py").err == snapshot


def test_exec_becomes_the_rank(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class BecameError(Exception):
        pass

    def become(command: object) -> None:
        raise BecameError(command)

    monkeypatch.setattr("plough.cli.exec.become_rank", become)
    with pytest.raises(BecameError) as became:
        main(["exec", "--no-compat", "train.py", "--", "-m", "x"])
    command = became.value.args[0]
    assert (command.target, command.arguments) == ("train.py", ("--", "-m", "x"))
    assert (command.module, command.compat) == (False, False)
