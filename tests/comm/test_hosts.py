"""Four hosts of two ranks, real network stacks between them: right values, and no byte sent twice."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "ranks"))
from network import hosts, why_not
from starting import Ended, end_ranks, start_ranks

HOSTS, PER_HOST = 4, 2
SIZE = HOSTS * PER_HOST
Network = tuple[list[list[str]], list[str]]
"""Words that put a command on each host, and the hosts' addresses."""

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ is not here"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with hosts(HOSTS) as made:
        yield made


def run(network: Network, where: list[int], script: str, *words: str, **env: str) -> list[Ended]:
    words_of, addresses = network
    prefix = [["env", f"HOST=host {host}", *words_of[host]] for host in where]
    return end_ranks(
        start_ranks(script, *words, size=SIZE, prefix=prefix, address=addresses[where[0]], env=env), 300
    )


IN_BLOCKS = [rank // PER_HOST for rank in range(SIZE)]
IN_TURNS = [rank % HOSTS for rank in range(SIZE)]


def test_every_collective_between_four_hosts(network: Network) -> None:
    env = {"COUNTS": "0,3,9001", "PLOUGH_CCL_TRANSPORT": "gloo", "TIMEOUT": "120"}
    ended = run(network, IN_TURNS, "values.py", **env)
    for rank, result in enumerate(ended):
        assert result.code == 0, f"rank {rank}: {result.stderr[-3000:]}"
    facts = json.loads(ended[0].stdout.splitlines()[-1])
    assert (facts["hosts"], facts["ranks here"]) == ("4", "2")


@pytest.mark.parametrize("layout", ["blocks", "turns"])
def test_a_host_sends_what_its_ranks_reduced_and_no_more(layout: str, network: Network) -> None:
    where = IN_BLOCKS if layout == "blocks" else IN_TURNS
    ended = run(network, where, "traffic.py", "ccl", "4", "3", PLOUGH_CCL_TRANSPORT="gloo")
    assert [result.code for result in ended] == [0] * SIZE, ended[0].stderr[-3000:]
    sent = json.loads(ended[0].stdout.splitlines()[-1])["hosts"]
    # A flat allreduce by reduce-scatter and allgather: each rank sends each other rank its share, twice;
    # so a host's ranks send to all ranks elsewhere 2 * N / size each.
    flat = PER_HOST * 2 * (SIZE - PER_HOST) / SIZE
    for host, share in sent.items():
        assert share <= 1.1 * flat / PER_HOST, f"{host} sent {share} times the tensor; flat: {flat}"
