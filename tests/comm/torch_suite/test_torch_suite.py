"""torch's own tests of a distributed backend on `ccl`, each of them a test here.

`make test-torch` runs them on two ranks, or as many as a test needs. PLOUGH_SUITE_RANKS=4 runs all on four;
with PLOUGH_SUITE_HOSTS=2 these take themselves to be on two hosts.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.comm.torch_suite.excluded import BUG, EXCLUDED
from tests.comm.torch_suite.upstream import UpstreamTest, upstream_tests

ROOT = Path(__file__).parents[3]
RANKS = int(os.environ.get("PLOUGH_SUITE_RANKS", "2"))
HOSTS = int(os.environ.get("PLOUGH_SUITE_HOSTS", "1"))
START_S = 900  # the extension may have to be built
TIMEOUT_S = 180
GRACE_S = 60  # for the host to find that ranks hang, ask where, and end them
UPSTREAM = upstream_tests()


class Host:
    """The process that forks the ranks; made again when it is lost."""

    def __init__(self, errors: IO[bytes]) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = errors

    def ask(self, **request: Any) -> dict[str, str]:
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer(request["timeout_s"] + GRACE_S)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.comm.torch_suite.host"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            start_new_session=True,
        )
        assert self.answer(START_S) == {"outcome": "ready"}

    def answer(self, timeout_s: float) -> dict[str, str]:
        assert self.process is not None
        assert self.process.stdout is not None
        came, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if came else b""
        if line:
            return dict(json.loads(line))
        self.stop()
        self.errors.seek(0)
        why = "ended" if came else f"did not answer within {timeout_s:g} s"
        return {"outcome": "lost", "text": f"the host of the ranks {why}\n{self.errors.read().decode()}"}

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
        self.process = None


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with tempfile.TemporaryFile() as errors:
        host = Host(errors)
        yield host
        host.stop()


@pytest.mark.torchsuite
@pytest.mark.parametrize(
    "test", [pytest.param(test, id=test.name) for test in UPSTREAM if test.name not in EXCLUDED]
)
def test_upstream(host: Host, test: UpstreamTest) -> None:
    ranks = max(RANKS, test.least)
    answer = host.ask(test=test.name, ranks=ranks, hosts=HOSTS, gpu=test.gpu, timeout_s=TIMEOUT_S)
    if answer["outcome"] != "passed":
        pytest.fail(f"{test.name} {answer['outcome']} on {ranks} ranks\n{answer['text']}", pytrace=False)


class TestExcluded:
    def test_each_is_still_a_test_of_torch(self) -> None:
        assert set(EXCLUDED) - {test.name for test in UPSTREAM} == set()

    def test_they_are_sorted(self) -> None:
        assert list(EXCLUDED) == sorted(EXCLUDED)

    def test_none_is_there_for_a_bug(self) -> None:
        assert {name: why for name, why in EXCLUDED.items() if why.startswith(BUG)} == {}
