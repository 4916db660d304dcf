from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.comm.locality import Place, RankFacts, candidates, leaders, own_facts, places


def facts(*keys: str) -> list[RankFacts]:
    # Host names say nothing: all are called the same, as containers may be.
    return [RankFacts(key=key, host="localhost", pid=100 + i, cpus=(0,)) for i, key in enumerate(keys)]


TABLE = {
    "one host": (["a", "a", "a"], {}, [(0, 0), (0, 1), (0, 2)]),
    "two hosts, one after the other": (["a", "a", "b", "b"], {}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
    "two hosts, in turns": (["a", "b", "a", "b"], {}, [(0, 0), (1, 0), (0, 1), (1, 1)]),
    "hosts of one": (["a", "b", "c"], {}, [(0, 0), (1, 0), (2, 0)]),
    "one cannot open the memory": (["a", "a", "a"], {1: False}, [(0, 0), (1, 0), (0, 1)]),
    "nobody can": (["a", "a", "b", "b"], {1: False, 3: False}, [(0, 0), (2, 0), (1, 0), (3, 0)]),
}


@pytest.mark.parametrize("case", TABLE)
def test_places(case: str) -> None:
    keys, failed, wanted = TABLE[case]
    hosts = candidates(facts(*keys))
    attached = {rank: failed.get(rank, True) for host in hosts for rank in host[1:]}
    assert places(hosts, attached) == [Place(*pair) for pair in wanted]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.data())
def test_every_rank_has_one_place_and_every_host_one_leader(keys: list[str], data: st.DataObject) -> None:
    hosts = candidates(facts(*keys))
    attached = {rank: data.draw(st.booleans()) for host in hosts for rank in host[1:]}
    found = places(hosts, attached)
    assert len({(p.host, p.index) for p in found}) == len(keys)
    first = leaders(found)
    assert len(first) == max(p.host for p in found) + 1
    for host, rank in enumerate(first):
        here = [r for r, p in enumerate(found) if p.host == host]
        assert rank == here[0]  # the lowest rank leads
        assert [found[r].index for r in here] == list(range(len(here)))
        assert len({keys[r] for r in here}) == 1  # never two kernels on one host


def test_own_facts_are_of_the_kernel_not_of_the_name(tmp_path: Path) -> None:
    mine = own_facts(None)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert mine.key.startswith(boot)
    assert mine.host not in mine.key
    assert mine.pid == os.getpid()
    assert set(mine.cpus) == os.sched_getaffinity(0)
    assert own_facts("left").key != own_facts("right").key


def test_a_kernel_without_namespaces_has_one_for_all(tmp_path: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("1234\n")
    assert own_facts(None, root=tmp_path).key == f"1234/{os.getuid()}/pid:?/net:?/ipc:?/user:?"
