"""`ccl` through torch.distributed, in real processes: every collective against what it must give."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from plough.comm.oneccl import NotUsable, find_oneccl

sys.path.insert(0, str(Path(__file__).parent / "ranks"))
from starting import run_ranks

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ is not here")

SMALL = {"COUNTS": "0,1,700,9001"}
WAYS = {
    "two ranks, buffer to buffer": {"size": 2, "env": {}},
    "two ranks, shared memory, small slots": {
        "size": 2,
        "env": {**SMALL, "PLOUGH_CCL_DIRECT": "0", "PLOUGH_CCL_SLOT_KIB": "8"},
    },
    "three ranks, avx2, two workers": {
        "size": 3,
        "env": {**SMALL, "PLOUGH_CCL_ISA": "avx2", "CCL_WORKER_COUNT": "2"},
    },
    "two hosts of one rank, gloo": {"size": 2, "hosts": 2, "env": {**SMALL, "PLOUGH_CCL_TRANSPORT": "gloo"}},
    "five ranks on two hosts, gloo": {
        "size": 5,
        "hosts": 2,
        "env": {"COUNTS": "0,1,9001", "PLOUGH_CCL_TRANSPORT": "gloo"},
    },
    "four ranks on two hosts, oneCCL": {
        "size": 4,
        "hosts": 2,
        "env": {"COUNTS": "0,1,9001,70001", "PLOUGH_CCL_TRANSPORT": "oneccl"},
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_collective_gives_what_it_must(way: str) -> None:
    transport = WAYS[way]["env"].get("PLOUGH_CCL_TRANSPORT", "")
    if transport == "oneccl" and isinstance(found := find_oneccl(), NotUsable):
        pytest.skip(f"needs oneCCL: {found.reason}")
    ended = run_ranks("values.py", **WAYS[way])
    for rank, result in enumerate(ended):
        assert result.code == 0, f"rank {rank}: {result.stderr[-3000:]}"
    facts = json.loads(ended[0].stdout.splitlines()[-1])  # oneCCL talks on stdout too
    wanted = WAYS[way]
    assert facts["hosts"] == str(wanted.get("hosts", 1))
    assert facts["between"] == transport
    if "PLOUGH_CCL_DIRECT" in wanted["env"]:
        assert facts["inside"] == "shared memory"
    if "PLOUGH_CCL_ISA" in wanted["env"]:
        assert facts["isa"] == "avx2"
