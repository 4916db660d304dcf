"""Affinity and memory policy, really applied: in processes of their own, since both stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from plough.contract import MemoryPolicy
from plough.launchers import placement
from plough.launchers.placement import apply_placement

# Applies what it is told, becomes another Python, and says what is in force there.
APPLY = """
import json, os, sys
from plough.contract import MemoryPolicy
from plough.launchers.placement import apply_placement
cpus, nodes = json.loads(sys.argv[1])
memory = MemoryPolicy(mode="bind", nodes=tuple(nodes)) if nodes else MemoryPolicy(mode="first-touch")
problems = apply_placement(cpus, memory)
report = '''
import json, os, sys
maps = "/proc/self/numa_maps"
policy = [line.split()[1] for line in open(maps)] if os.path.exists(maps) else []
print(json.dumps([json.loads(sys.argv[1]), sorted(os.sched_getaffinity(0)), policy]))
'''
os.execv(sys.executable, [sys.executable, "-c", report, json.dumps(problems)])
"""


def applied(cpus: list[int], nodes: list[int]) -> tuple[list[str], list[int], list[str]]:
    """Problems, CPUs and memory policies of the process after exec."""
    done = subprocess.run(
        [sys.executable, "-c", APPLY, json.dumps([cpus, nodes])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    problems, affinity, policies = json.loads(done.stdout)
    return problems, affinity, policies


def test_cores_are_bound_across_exec() -> None:
    last = max(os.sched_getaffinity(0))
    problems, cpus, _ = applied([last], [])
    assert (problems, cpus) == ([], [last])


def test_no_cores_means_not_bound() -> None:
    problems, cpus, _ = applied([], [])
    assert (problems, cpus) == ([], sorted(os.sched_getaffinity(0)))


def test_cores_that_cannot_be_had_are_reported() -> None:
    problems, cpus, _ = applied([100_000, 100_001], [])
    assert len(problems) == 1
    assert problems[0].startswith("cores 100000,100001 could not be bound to: ")
    assert cpus == sorted(os.sched_getaffinity(0))


def test_memory_is_bound_to_node_0_or_the_reason_is_reported() -> None:
    problems, _, policies = applied([], [0])
    if problems:  # a seccomp filter or a kernel without NUMA
        assert len(problems) == 1
        assert problems[0].startswith("memory could not be bound to node 0 (")
        assert "first touch" in problems[0]
    elif policies:
        assert any(policy.startswith("bind:0") for policy in policies)


def test_a_node_that_is_not_there_is_reported() -> None:
    problems, cpus, _ = applied([], [511])
    assert len(problems) == 1
    assert problems[0].startswith("memory could not be bound to node 511 (")
    assert cpus == sorted(os.sched_getaffinity(0))


def test_an_architecture_without_a_known_call_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement.platform, "machine", lambda: "vax")
    (problem,) = apply_placement([], MemoryPolicy(mode="bind", nodes=(0,)))
    assert "no set_mempolicy known for vax" in problem


@pytest.mark.parametrize(
    ("nodes", "words"), [((0,), [0b1]), ((1, 3), [0b1010]), ((0, 64), [1, 1]), ((70,), [0, 64])]
)
def test_the_node_mask(monkeypatch: pytest.MonkeyPatch, nodes: tuple[int, ...], words: list[int]) -> None:
    calls: list[Any] = []

    class Libc:
        def syscall(self, number: int, mode: int, mask: Any, maxnode: int) -> int:
            calls.append((number, mode, list(mask), maxnode))
            return 0

    monkeypatch.setattr(placement.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(placement.ctypes, "CDLL", lambda *_, **__: Libc())
    assert placement.bind_memory(nodes) is None
    assert calls == [(237, 2, words, 64 * len(words) + 1)]


def test_a_child_dies_with_its_parent() -> None:
    # The child holds the pipe's other end: the read returns once it is gone, and not before.
    code = """
import os, signal, sys
from plough.launchers.placement import die_with_parent
ready, said = os.pipe()
if os.fork() == 0:
    die_with_parent(signal.SIGKILL)
    os.write(said, b"x")
    signal.pause()
os.read(ready, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == b""
