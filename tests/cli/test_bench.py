"""`plough bench`: help, wrong use, what would be started, and measurements shown again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from plough.launchers import JobResult
from plough.topology.machine import Machine, Software
from tests.bench.made_up import result
from tests.cli.conftest import Plough
from tests.machines.trees import described


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of two sockets with Intel MPI, and a folder with a measurement and a file of hosts."""
    monkeypatch.chdir(tmp_path)
    Path("kept.json").write_text(result(collectives=("all_reduce", "barrier")).to_json())
    Path("hosts").write_text("# two\nnode0:2  # the first\n\nnode1\n")
    Path("empty").write_text("# none\n")
    Path("mpiexec.hydra").write_text("")
    Path("mpiexec.hydra").chmod(0o755)
    software = Software(mpirun=str(tmp_path / "mpirun"), mpi_flavour="intel")
    machine = replace(described("xeon-2x24"), hostname="here", software=software)
    monkeypatch.setattr("plough.cli.bench.probe", lambda: machine)
    return machine


def test_help(plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough("bench", "collectives", "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


WRONG = [
    "bench",
    "bench everything",
    "bench collectives --collectives all-reduce",
    "bench collectives --sizes 4KB",
    "bench collectives --dtypes float16",
    "bench collectives --backends mpi",
    "bench collectives --seconds-per-point 0",
    "bench collectives --rounds 0",
    "bench collectives --plot chart.pdf",
    "bench collectives --plot nowhere/chart.svg",
    "bench collectives --show nowhere.json",
    "bench collectives --show hosts",
    "bench collectives --ranks 1",
    "bench collectives --mpirun mpirun",
    "bench collectives --hosts nowhere",
    "bench collectives --hosts empty",
    "bench collectives --hosts hosts --ranks 2 --sizes 64,25MiB --collectives all_reduce",
]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use(line: str, plough: Plough, here: Machine, snapshot: SnapshotAssertion) -> None:
    said = plough(*line.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


def test_png_without_matplotlib(plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = plough("bench", "collectives", "--plot", "chart.png")
    assert said.code == 2
    assert "pip install 'plough[plot]'" in said.err


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--ranks 4 --launcher local",
        "--sizes 64,25MiB --dtypes bfloat16 --backends ccl,gloo --rounds 3 --seconds-per-point 0.1",
    ],
)
def test_dry_run(
    words: str, plough: Plough, here: Machine, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = plough("bench", "collectives", "--dry-run", *words.split())
    assert (said.code, said.err) == (0, "")
    assert said.out.replace(str(tmp_path), "HERE") == snapshot


def test_two_ranks_where_training_would_have_one(
    plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plough.cli.bench.probe", lambda: described("vm-2-core"))
    assert "--nproc-per-node=2" in plough("bench", "collectives", "--dry-run").out


def test_show(plough: Plough, here: Machine, snapshot: SnapshotAssertion) -> None:
    said = plough("bench", "collectives", "--show", "kept.json")
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


def test_show_and_draw(plough: Plough, here: Machine) -> None:
    said = plough("bench", "collectives", "--show", "kept.json", "--plot", "chart.svg", "--json")
    assert (said.code, said.err) == (0, "plough: drawn in chart.svg\n")
    assert said.out == Path("kept.json").read_text() + "\n"
    assert Path("chart.svg").read_text().startswith("<svg")


def test_a_job_that_failed_shows_nothing(
    plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = JobResult(code=1, failure=None, log=("no",), interrupted=False, facts=(), seconds=1.0)
    monkeypatch.setattr("plough.cli.bench.submit", lambda *_: ended)
    said = plough("bench", "collectives", "--launcher", "local")
    assert (said.code, said.out) == (2, "")
    assert "`plough bench collectives --dry-run` shows the exact command" in said.err


def test_interrupted(plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = JobResult(code=130, failure=None, log=(), interrupted=True, facts=(), seconds=1.0)
    monkeypatch.setattr("plough.cli.bench.submit", lambda *_: ended)
    said = plough("bench", "collectives", "--launcher", "local")
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith("plough: interrupted; every rank has been ended\n")


def test_what_the_ranks_wrote_is_shown(
    plough: Plough, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(rendered: object, plan: object, folder: Path) -> JobResult:
        (folder / "collectives.json").write_text(result(notes=("mind this",)).to_json())
        return JobResult(code=0, failure=None, log=(), interrupted=False, facts=(), seconds=1.0)

    monkeypatch.setattr("plough.cli.bench.submit", submit)
    said = plough("bench", "collectives", "--launcher", "local", "--json")
    assert said.code == 0
    assert json.loads(said.out)["setup"]["ranks"] == 2
    assert said.err.splitlines()[-1] == "plough: warning: mind this"
