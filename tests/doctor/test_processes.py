"""Real processes: how each way of ending is told, and that nothing is left running."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from plough.contract import Env
from plough.doctor.facts import Trial
from plough.doctor.processes import Attempt, run_attempts
from plough.doctor.programs import MARK
from plough.errors import PloughError

REPORT = f'print({MARK!r} + \'{{"found": {{"a": "b"}}, "libraries": ["/x"]}}\')'


def python(*programs: str, timeout_s: float = 30, reports: bool = True, **environment: str) -> Attempt:
    commands = tuple((sys.executable, "-c", program) for program in programs)
    return Attempt(
        name="it", commands=commands, timeout_s=timeout_s, environment=environment, reports=reports
    )


def ran(attempt: Attempt) -> Trial:
    return run_attempts([attempt], os.environ, at_once=2)[attempt.name]


def test_worked() -> None:
    trial = ran(python(f"print('a line'); {REPORT}"))
    assert (trial.outcome, trial.said, trial.found, trial.libraries) == (
        "worked",
        "a line",
        {"a": "b"},
        ("/x",),
    )
    assert 0 < trial.seconds < 30


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('one')", "ValueError: one"),
        ("import sys; sys.exit('words')", "words"),
        (
            "import sys; sys.stderr.write('OSError: the cause\\nsomething after\\n'); sys.exit(3)",
            "OSError: the cause",
        ),
        ("import os; print('ERROR! other torch', flush=True); os._exit(127)", "ERROR! other torch"),
        ("import sys; sys.exit(3)", "exit code 3, without a word"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("import os; print('bye', flush=True); os.abort()", "ended by SIGABRT: bye"),
        ("pass", "it ended without a word"),
        ("print('no report')", "no report"),
    ],
)
def test_failed(program: str, said: str) -> None:
    trial = ran(python(program))
    assert (trial.outcome, trial.said) == ("failed", said)


def test_a_failure_may_report() -> None:
    trial = ran(python(f"{REPORT}; raise SystemExit(1)"))
    assert (trial.outcome, trial.found) == ("failed", {"a": "b"})


def test_no_report_wanted() -> None:
    trial = ran(Attempt(name="it", commands=(("echo", "mpirun 1.2"),), timeout_s=9, reports=False))
    assert (trial.outcome, trial.said) == ("worked", "mpirun 1.2")


def test_the_line_that_tells() -> None:
    command = ("printf", "HYDRA build details:\\n  Version: 4.0.2\\n")
    attempt = Attempt(name="it", commands=(command,), timeout_s=9, reports=False, telling=r"\d\.\d")
    assert ran(attempt).said == "Version: 4.0.2"


def test_nothing_to_start() -> None:
    trial = ran(Attempt(name="it", commands=(("/no/such/program",),), timeout_s=9))
    assert (trial.outcome, trial.said) == ("failed", "/no/such/program: No such file or directory")


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_hung_with_its_children(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
print("waiting for a lock", flush=True)
time.sleep(600)
"""
    trial = ran(python(program, timeout_s=2))
    assert (trial.outcome, trial.said) == ("hung", "no end after 2 s: waiting for a lock")
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_stubborn_one_is_killed() -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    assert ran(python(program, timeout_s=1)).outcome == "hung"


def test_one_of_two_fails_and_the_other_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.doctor.processes.GRACE_S", 0.2)
    trial = ran(python("import time; time.sleep(600)", "raise ValueError('two')"))
    assert (trial.outcome, trial.said) == ("failed", "ValueError: two")


def test_each_in_an_empty_folder_of_its_own() -> None:
    program = f"import os; assert not [n for n in os.listdir() if n[0] != '.']; open('x', 'w'); {REPORT}"
    trials = run_attempts([python(program), python(program)], os.environ, at_once=1)
    assert [trial.outcome for trial in trials.values()] == ["worked"]


def test_environment_is_added() -> None:
    assert ran(python(f"import os; assert os.environ['AB'] == 'c'; {REPORT}", AB="c")).worked


def test_as_many_at_once_as_allowed_and_in_order() -> None:
    names = ("a", "b", "c")
    attempts = [
        Attempt(name=name, commands=(("sleep", "0.2"),), timeout_s=9, reports=False) for name in names
    ]
    told: list[str] = []
    trials = run_attempts(attempts, os.environ, at_once=3, progress=told.append)
    assert tuple(trials) == names
    assert all(trial.worked for trial in trials.values())
    assert told == ["trying a, b, c"]
    assert run_attempts([], os.environ, at_once=3, progress=told.append) == {}
    assert len(told) == 1


def test_what_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.doctor.processes.REPORT_EVERY_S", 0.1)
    told: list[str] = []
    attempt = Attempt(name="it", commands=(("sleep", "0.5"),), timeout_s=9, reports=False)
    run_attempts([attempt], os.environ, at_once=1, progress=told.append)
    assert told[1] == "still trying it"


def test_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.doctor.processes.REPORT_EVERY_S", 0.5)
    pid = tmp_path / "pid"

    def interrupt(text: str) -> None:
        if text.startswith("still"):
            raise KeyboardInterrupt

    program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_attempts([python(program)], os.environ, at_once=1, progress=interrupt)
    assert not pid.exists() or gone(int(pid.read_text()))


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(Env.TMPDIR, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(PloughError, match="nowhere to run trials"):
        ran(python(REPORT))
