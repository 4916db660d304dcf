"""The launcher's own stdout and stderr reach a relay past whatever started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plough.launchers import stdio

SERVE = """
import subprocess, sys
from pathlib import Path
from plough.launchers import stdio
job = Path(sys.argv[1])
with stdio.serve(job):
    # As under mpirun: the child's own stdout and stderr lead nowhere.
    for _ in range(3):
        subprocess.run([sys.executable, "-c", sys.argv[2], str(job)],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
print("served")
"""
RECEIVE = """
import os, sys
from pathlib import Path
from plough.launchers.stdio import receive
out, err = receive(Path(sys.argv[1]))
os.write(out, b"to stdout\\n")
os.write(err, b"to stderr\\n")
"""


def served(job: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(job), RECEIVE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


def test_descriptors_are_passed_to_all_who_ask(tmp_path: Path) -> None:
    assert served(tmp_path) == ("to stdout\n" * 3 + "served\n", "to stderr\n" * 3)


def test_a_path_too_long_for_a_socket_falls_back(tmp_path: Path) -> None:
    job = tmp_path / ("x" * 120)
    job.mkdir()
    assert served(job) == ("served\n", "")
    with stdio.serve(job):
        assert stdio.receive(job) == (1, 2)


def test_no_launcher_there(tmp_path: Path) -> None:
    assert stdio.receive(tmp_path) == (1, 2)
    with stdio.serve(tmp_path):
        pass
    assert stdio.receive(tmp_path) == (1, 2)


def test_only_the_user_may_ask(tmp_path: Path) -> None:
    with stdio.serve(tmp_path):
        assert (tmp_path / stdio.SOCKET).stat().st_mode & 0o777 == 0o600
