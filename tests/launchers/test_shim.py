"""`plough exec` under environments that others made: whose plan, whose variables, whose binding."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from plough.contract import Contract, MemoryPolicy, WorkerIdentity
from plough.errors import ContractError, PlanError
from plough.launchers import Command, shim
from plough.launchers.records import save_plan
from plough.plan import PlanRequest, make_plan
from plough.topology.machine import Machine
from tests.machines.trees import described


def hydra(rank: int, size: int, local: int | None = None, local_size: int | None = None) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank if local is None else local),
        "MPI_LOCALNRANKS": str(local_size or size),
    }


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "vm",
    "MASTER_PORT": "40000",
}


class Host:
    """The machine the shim finds, and whether its launcher has bound it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine: Machine = described("xeon-2x24")
        self.bound = False
        monkeypatch.setattr(shim, "probe", lambda: self.machine)
        monkeypatch.setattr(shim, "bound_by_launcher", lambda _: self.bound)

    def bind(self, cpus: Sequence[int]) -> None:
        self.bound = True
        self.machine = replace(self.machine, limits=replace(self.machine.limits, cpus=tuple(cpus)))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that was started without OMP_NUM_THREADS, as torchrun's agent is by most people."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={}) as process:
        yield process.pid
        process.kill()


def own_plan(env: dict[str, str], parent: int = 0) -> Any:
    return shim.own_plan(WorkerIdentity.from_env(env), env, parent=parent)


def test_two_ranks_share_the_host(host: Host) -> None:
    plan = own_plan(hydra(0, 2))
    assert [rank.cpus for rank in plan.ranks] == [tuple(range(1, 24)), tuple(range(25, 48))]
    assert [rank.threads for rank in plan.ranks] == [23, 23]
    assert plan.warnings == ()


def test_the_users_number_of_threads_is_kept(host: Host) -> None:
    plan = own_plan({**hydra(0, 2), "OMP_NUM_THREADS": "8"})
    assert [rank.environment["OMP_NUM_THREADS"] for rank in plan.ranks] == ["8", "8"]
    assert any("OMP_NUM_THREADS=8 leaves 15 of 23 cores per rank idle" in text for text in plan.warnings)


def test_torchruns_own_1_is_not_the_users(host: Host, parent: int) -> None:
    plan = own_plan({**TORCHRUN, "OMP_NUM_THREADS": "1"}, parent)
    assert [rank.threads for rank in plan.ranks] == [23, 23]
    assert plan.warnings == ()


def test_the_users_1_under_torchrun_is(host: Host) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"OMP_NUM_THREADS": "1"}
    ) as agent:
        plan = own_plan({**TORCHRUN, "OMP_NUM_THREADS": "1"}, agent.pid)
        agent.kill()
    assert [rank.threads for rank in plan.ranks] == [1, 1]


def test_more_ranks_than_cores_are_what_was_asked_for(host: Host) -> None:
    host.machine = described("vm-2-core")
    plan = own_plan(hydra(3, 4))
    assert [rank.cpus for rank in plan.ranks] == [(0,), (0,), (1,), (1,)]
    assert plan.warnings == (
        "4 ranks on 2 cores: ranks take turns on a core, and each step waits for the slowest",
    )


def test_a_binding_of_its_launcher_is_kept(host: Host) -> None:
    host.bind(range(24, 48))
    plan = own_plan(hydra(1, 2))
    mine = plan.ranks[1]
    assert (mine.cpus, mine.threads, mine.memory) == (
        tuple(range(25, 48)),
        23,
        MemoryPolicy(mode="bind", nodes=(1,)),
    )
    assert [(r.rank, r.local_rank, r.local_world_size) for r in plan.ranks] == [(0, 0, 2), (1, 1, 2)]
    assert plan.reasons[-1] == "intel-mpi bound each rank to cores of its own; kept"
    # It still has a peer on this host: without an address they would not find each other.
    assert mine.environment["MASTER_ADDR"] == "127.0.0.1"
    assert "CCL_WORKER_AFFINITY" not in mine.environment


def test_a_binding_that_leaves_most_of_the_host_idle_is_undone(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.bind([0])
    plan = own_plan(hydra(0, 2))
    assert [rank.cpus for rank in plan.ranks] == [tuple(range(1, 24)), tuple(range(25, 48))]
    assert capsys.readouterr().err == (
        "plough: warning: intel-mpi bound rank 0 to 1 of the 24 cores that are its fair share; "
        "binding to its share instead\n"
    )


def test_the_part_of_one_of_two_hosts(host: Host) -> None:
    plan = own_plan(hydra(3, 4, local=1, local_size=2))
    assert plan.world_size == 2
    assert "MASTER_ADDR" not in plan.ranks[1].environment
    assert "GLOO_SOCKET_IFNAME" not in plan.ranks[1].environment


# The whole of become_rank, up to the exec that it ends in.


class BecameError(Exception):
    """Carries what the shim would have become."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        super().__init__(argv)
        self.argv, self.env = argv, env


class Shim:
    """become_rank under an environment of the test's making, with nothing applied to this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.placed: list[tuple[tuple[int, ...], MemoryPolicy]] = []
        self.problems: list[str] = []
        self.monkeypatch = monkeypatch

        def place(cpus: tuple[int, ...], memory: MemoryPolicy) -> list[str]:
            self.placed.append((cpus, memory))
            return self.problems

        def execve(_: str, argv: list[str], env: dict[str, str]) -> None:
            raise BecameError(argv, env)

        monkeypatch.setattr(shim, "apply_placement", place)
        monkeypatch.setattr(shim, "agree_on_port", lambda *_: 45678)
        monkeypatch.setattr(os, "execve", execve)

    def become(self, env: dict[str, str], command: Command | None = None) -> tuple[list[str], dict[str, str]]:
        self.monkeypatch.setattr(os, "environ", {"PATH": "/bin", **env})
        with pytest.raises(BecameError) as became:
            shim.become_rank(command or Command(target="train.py", arguments=("--lr", "1")))
        return became.value.argv, became.value.env


@pytest.fixture
def becomes(host: Host, monkeypatch: pytest.MonkeyPatch) -> Shim:
    return Shim(monkeypatch)


def test_becoming_a_rank_of_mpirun(becomes: Shim) -> None:
    argv, env = becomes.become(hydra(1, 2))
    assert argv == [sys.executable, "-m", "plough.worker", "train.py", "--lr", "1"]
    assert becomes.placed == [(tuple(range(25, 48)), MemoryPolicy(mode="bind", nodes=(1,)))]
    assert {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "45678")
    assert (env["OMP_NUM_THREADS"], env["PLOUGH_COMPAT"], env["PATH"]) == ("23", "1", "/bin")
    contract = Contract.from_env(env)
    assert contract is not None
    assert (contract.threads, contract.cpus, contract.hosts) == (23, tuple(range(25, 48)), 1)
    assert contract.identity.launcher == "intel-mpi"


def test_a_module_without_compat(becomes: Shim) -> None:
    argv, env = becomes.become({}, Command(target="my.train", module=True, compat=False))
    assert argv[-2:] == ["-m", "my.train"]
    assert env["PLOUGH_COMPAT"] == "0"


def test_a_process_alone_is_given_no_group(becomes: Shim) -> None:
    _, env = becomes.become({})
    assert {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}.isdisjoint(env)


def test_what_could_not_be_done_is_said_and_recorded(
    becomes: Shim, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes.problems = ["memory could not be bound"]
    _, env = becomes.become(hydra(1, 2))
    contract = Contract.from_env(env)
    assert contract is not None
    assert contract.problems == ("memory could not be bound",)
    assert capsys.readouterr().err == "plough: warning: rank 1: memory could not be bound\n"


# the environment -> where the ranks meet
MEETING: dict[str, tuple[dict[str, str], tuple[str | None, str | None]]] = {
    "torchrun's own": (TORCHRUN, ("vm", "40000")),
    "the user's port": ({**hydra(0, 2), "MASTER_PORT": "29501"}, ("127.0.0.1", "29501")),
    "the user's address and port": (
        {**hydra(0, 2), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"},
        ("10.0.0.1", "29501"),
    ),
    "two hosts": ({**hydra(2, 4, 0, 2), "MASTER_ADDR": "node1"}, ("node1", "29500")),
    "a pod": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"},
        ("job-master-0", "23456"),
    ),
}


@pytest.mark.parametrize("case", sorted(MEETING))
def test_where_ranks_meet(becomes: Shim, case: str) -> None:
    env, expected = MEETING[case]
    _, found = becomes.become(env)
    assert (found.get("MASTER_ADDR"), found.get("MASTER_PORT")) == expected


def test_several_hosts_without_an_address(becomes: Shim) -> None:
    becomes.monkeypatch.setattr(os, "environ", hydra(2, 4, 0, 2))
    with pytest.raises(ContractError, match="rank 2 of 4 runs on one of several hosts") as caught:
        shim.become_rank(Command(target="train.py"))
    assert "-genv MASTER_ADDR" in str(caught.value.hint)


def test_under_plough_run_the_plan_is_the_launchers(becomes: Shim, tmp_path: Path) -> None:
    watched = []
    becomes.monkeypatch.setattr(shim, "watch_in_parent", lambda *args: watched.append(args))
    save_plan(tmp_path, make_plan([described("xeon-2x24")], PlanRequest(ranks=2, threads=5)))
    _, env = becomes.become({**hydra(1, 2), "PLOUGH_JOB_DIR": str(tmp_path), "OMP_NUM_THREADS": "9"})
    assert watched == [(tmp_path, 1, 2)]
    assert env["OMP_NUM_THREADS"] == "5"
    assert env["MASTER_PORT"] == "45678"
    with pytest.raises(PlanError, match="the plan is for 2 ranks, the launcher started 3"):
        becomes.become({**hydra(1, 3), "PLOUGH_JOB_DIR": str(tmp_path)})
