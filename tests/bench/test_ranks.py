"""Two real ranks, tiny sizes: what is written is whole, and a wrong result ends it. Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plough.bench.result import Result, load_result
from plough.bench.sizes import COLLECTIVES
from plough.comm.oneccl import OneCcl, find_oneccl

PLOUGH = [sys.executable, "-m", "plough"]
QUICK = ["--seconds-per-point", "0.001", "--rounds", "2"]
TIMEOUT = 600  # the first run of a change of the C++ compiles it

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def bench(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*PLOUGH, "bench", "collectives", "--ranks", "2", *QUICK, *words]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def load(text: str, tmp_path: Path) -> Result:
    (tmp_path / "result.json").write_text(text)
    return load_result(tmp_path / "result.json")


def test_every_collective_of_everything_that_is_there(tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    done = bench("--sizes", "64,4KiB", "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    result = load(done.stdout, tmp_path)
    oneccl = isinstance(find_oneccl(), OneCcl)
    names = ["ccl", "gloo", *(["oneccl"] if oneccl else [])]
    assert list(result.setup.backends) == names
    assert result.setup.backends["ccl"]["hosts"] == "1"
    assert (result.setup.ranks, result.setup.cores) == (2, (1, 1)) or len(os.sched_getaffinity(0)) > 2
    assert any("oneCCL is left out" in note for note in result.setup.notes) == (not oneccl)
    assert [one.collective for one in result.measured] == [
        name for name in COLLECTIVES for _ in range(1 if name == "barrier" else 4)
    ]
    for one in result.measured:
        lacking = {"oneccl"} if one.collective in ("gather", "scatter") else set()
        assert [timing.backend for timing in one.timings] == [n for n in names if n not in lacking]
        assert all(timing.verified for timing in one.timings)
        assert all(len(timing.rounds) == 2 for timing in one.timings)
        for timing in one.timings:
            us, numbers = timing.us, [part.repetitions for part in timing.rounds]
            assert us.repetitions == sum(numbers) >= 4
            assert 0 < us.min <= us.median <= us.p90 <= us.max
            assert (timing.busbw is None) == (one.collective == "barrier")
    assert plot.read_text().startswith("<svg")
    shown = subprocess.run(
        [*PLOUGH, "bench", "collectives", "--show", str(tmp_path / "result.json")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert "all_reduce, float32\n" in shown.stdout


def test_under_a_launcher_of_the_users(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ranks = ["--no-python", *PLOUGH, "exec", "--no-compat", "-m", "plough.bench.ranks"]
    what = ["--collectives", "all_reduce", "--sizes", "64", "--dtypes", "float32", "--backends", "ccl"]
    output = tmp_path / "collectives.json"
    done = subprocess.run(
        [*torchrun, *ranks, "--output", str(output), *what, *QUICK],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert f"plough: written to {output}" in done.stderr
    (measured,) = load_result(output).measured
    assert [timing.backend for timing in measured.timings] == ["ccl"]


def test_a_wrong_result_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    # A broadcast that brings one wrong element, in every rank, from the first moment.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'plough.worker' in sys.orig_argv:\n"
        "    import torch.distributed as dist\n"
        "    right = dist.broadcast\n"
        "    def broadcast(tensor, *args, **kwargs):\n"
        "        right(tensor, *args, **kwargs)\n"
        "        if tensor.is_floating_point():\n"
        "            tensor[-1] += 1\n"
        "    dist.broadcast = broadcast\n"
    )
    done = bench(
        *("--collectives", "broadcast", "--sizes", "64", "--dtypes", "float32", "--backends", "gloo"),
        *("--launcher", "local", "--json"),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "error: broadcast float32 64 B by gloo gives a wrong result: rank 0: "
        "element 15 is 16, and 15 is right\n\nhint: nothing was timed."
    ) in done.stderr
    assert done.stderr.count("error:") == 1


def test_a_backend_that_was_asked_for_and_is_not_there(tmp_path: Path) -> None:
    # As if oneCCL were not installed: the ranks do not find its distribution.
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "found = metadata.distribution\n"
        "def distribution(name):\n"
        "    if name == 'oneccl-cpu':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.distribution = distribution\n"
    )
    tiny = ["--collectives", "barrier", "--launcher", "local", "--json"]
    lacking = {"PYTHONPATH": str(tmp_path)}
    asked = bench(*tiny, "--backends", "gloo,oneccl", env=lacking)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "error: oneCCL is not installed\n\nhint: pip install 'plough[oneccl]'" in asked.stderr
    taken = bench(*tiny, env=lacking)
    assert taken.returncode == 0, taken.stderr
    assert list(json.loads(taken.stdout)["setup"]["backends"]) == ["ccl", "gloo"]
    assert "warning: oneCCL is left out: oneCCL is not installed" in taken.stderr
