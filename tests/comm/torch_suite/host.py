"""The process in which torch's tests run: it imports them once, and forks the ranks of each.

Says {"outcome": "ready"}, then answers a line like {"test": ..., "ranks": ..., ...}, see `run`, with a line
{"outcome": "passed" | "skipped" | "failed", "text": ...}. Must not compute anything with torch itself:
ranks are forked, and threads would not come along.

Upstream's tests ask which backend they run on before they do anything; almost every condition is met by none
but gloo, mpi or nccl. None of these gates is asked here. What does not apply to `ccl` is in excluded.py.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.comm.torch_suite.upstream import upstream_tests

BACKEND = "ccl"
KEPT_CHARACTERS = 20_000
BEFORE_KILLED_S = 15

# What upstream expects gloo to say, and what `ccl` says then.
LATE = r"^ccl: barrier #\d+ timed out after [\d.]+ s: .*rank {}\b.* did not come"
WORDS = {
    r" \(Timed out\|closed\|timeout\) ": LATE.format(1),
    r"Timed out waiting 1ms": r"^ccl: (barrier #\d+ timed out after 0.001 s|rank \d .* has left the group)",
    r"Rank 0 timed out in monitoredBarrier": LATE.format(1),
    r"Rank (\d)(?: failed to pass monitoredBarrier)?": LATE,
    r"Rank \d successfully reached monitoredBarrier, but .* rank (\d)": LATE.format(r"\d"),
    r"Ranks 1, 2, 3 failed to pass monitoredBarrier": LATE.format(r"1\b.*\brank 2\b.*\brank 3"),
    r"caught collective operation timeout": r"^ccl: work did not finish within the 100 ms",
}


def main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    suite = load_suite()
    known = {name for name in dir(suite) if name.startswith("test_")}
    assert known == {test.name for test in upstream_tests()}, "upstream.py reads torch's source wrongly"
    print(json.dumps({"outcome": "ready"}), file=answers, flush=True)
    with tempfile.TemporaryFile("w+") as output:
        for fd in (1, 2):
            os.dup2(output.fileno(), fd)
        for line in requests:
            output.truncate(0)
            output.seek(0)
            outcome, text = run(suite, **json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            output.seek(0)
            printed = output.read()[-KEPT_CHARACTERS:]
            print(json.dumps({"outcome": outcome, "text": f"{text}\n{printed}"}), file=answers, flush=True)


def run(suite: Any, *, test: str, ranks: int, hosts: int, gpu: bool, timeout_s: float) -> tuple[str, str]:
    os.environ["WORLD_SIZE"] = str(ranks)
    suite.gpu, suite.hosts = gpu, hosts
    from torch.testing._internal import common_distributed

    common_distributed.TIMEOUT_OVERRIDE.clear()
    common_distributed.TIMEOUT_DEFAULT = timeout_s
    result = unittest.TestResult()
    suite(test).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    for _, text in [*result.errors, *result.failures]:
        return "failed", text
    return "passed", ""


def load_suite() -> type[unittest.TestCase]:
    os.environ.update(BACKEND=BACKEND, WORLD_SIZE="2", TEMP_DIR=tempfile.gettempdir())
    from plough.comm.build import load_extension

    load_extension()  # built and loaded once, and on nobody's time
    upstream = import_without_gates()
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(upstream, name).append(BACKEND)

    upstream.BACKEND = _Name(BACKEND)

    class Suite(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):  # type: ignore[name-defined,misc]
        def setUp(self) -> None:
            super().setUp()
            upstream.INIT_METHOD = os.environ["INIT_METHOD"]  # as an import in a spawned rank would find it
            import torch.multiprocessing

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            processes = self.processes
            super().tearDown()
            for process in processes:
                process.join(BEFORE_KILLED_S)
                process.kill()
            Path(self.file_name).unlink(missing_ok=True)

        @classmethod
        def _run(cls, rank: int, *args: Any, **kwargs: Any) -> None:
            if cls.hosts > 1:
                os.environ["PLOUGH_CCL_LOCALITY"] = str(rank % cls.hosts)
            super()._run(rank, *args, **kwargs)

        def run_test(self, *args: Any) -> None:
            if not self.gpu:
                super().run_test(*args)
                return
            from tests.comm.torch_suite.no_gpu import pretend

            with pretend(int(self.world_size)):
                super().run_test(*args)

        def assertRaisesRegex(self, expected: Any, regex: str, *args: Any, **kwargs: Any) -> Any:
            words = in_our_words(regex, self.hosts)
            return super().assertRaisesRegex(expected, words, *args, **kwargs)  # noqa: PT027

    return Suite


def import_without_gates() -> Any:
    from torch.testing._internal import common_distributed, common_utils

    always = {
        common_utils: ["skip_but_pass_in_sandcastle", "skip_but_pass_in_sandcastle_if"],
        common_distributed: [
            "nccl_skip_if_lt_x_gpu",
            "require_n_gpus_for_nccl_backend",
            "requires_nccl_version",
            "skip_if_lt_x_gpu",
        ],
        unittest: ["skip", "skipIf"],
    }
    plain = [
        "skip_if_no_gpu",
        "skip_if_odd_worldsize",
        "skip_if_rocm_multiprocess",
        "skip_if_small_worldsize",
    ]
    with mock.patch.multiple(common_distributed, **dict.fromkeys(plain, _open)):
        for module, names in always.items():
            mock.patch.multiple(module, **dict.fromkeys(names, lambda *_, **__: _open)).start()
        try:
            return importlib.import_module("torch.testing._internal.distributed.distributed_test")
        finally:
            mock.patch.stopall()


class _Name(str):
    """Our name, for tests that do one thing with nccl and another with gloo: we do what gloo does."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def in_our_words(regex: str, hosts: int) -> str:
    """`regex`, or what `ccl` says instead; both, for some tests have a group of gloo's beside ours."""
    for theirs, ours in WORDS.items():
        if match := re.fullmatch(theirs, regex):
            if hosts > 1:  # which ranks are late is known of the own host only
                return rf"{regex}|^ccl: .*(timed out|did not finish|has left)"
            return f"{regex}|{ours.format(*match.groups())}"
    return regex


def _open(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)  # upstream looks into `__wrapped__` of one
    def opened(*args: Any, **kwargs: Any) -> Any:
        return test(*args, **kwargs)

    return opened


if __name__ == "__main__":
    main()
