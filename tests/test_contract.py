"""Who a rank is, under every launcher, and what was promised to it."""

from __future__ import annotations

import pytest

from plough.contract import Contract, Env, MemoryPolicy, WorkerIdentity, single_process
from plough.errors import ContractError

# what an outer Slurm step of one task per node leaves in the environment of everything it starts
SRUN_OUTSIDE = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
# a batch script: sbatch runs it as a process of its own, outside any step
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_TASKS_PER_NODE": "4(x2)",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "vm",
    "MASTER_PORT": "40000",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


def srun(procid: int, local: int, node: int, tasks: int, per_node: str) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(procid),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
    }


# environment -> launcher, rank, world size, local rank, local world size
IDENTITIES: dict[str, tuple[dict[str, str], tuple[str, int, int, int, int]]] = {
    "nobody": ({"PATH": "/bin"}, ("none", 0, 1, 0, 1)),
    "torchrun": (TORCHRUN, ("torchrun", 3, 4, 1, 2)),
    "torchrun inside srun": ({**SRUN_OUTSIDE, **TORCHRUN}, ("torchrun", 3, 4, 1, 2)),
    "torchrun inside mpirun": ({**HYDRA, **TORCHRUN}, ("torchrun", 3, 4, 1, 2)),
    "Intel MPI or MPICH": (HYDRA, ("intel-mpi", 2, 4, 0, 2)),
    "hydra inside a Slurm step": ({**SRUN_OUTSIDE, **HYDRA}, ("intel-mpi", 2, 4, 0, 2)),
    "hydra inside a batch script": ({**BATCH_SCRIPT, **HYDRA}, ("intel-mpi", 2, 4, 0, 2)),
    "Open MPI": (OPENMPI, ("openmpi", 5, 8, 1, 4)),
    "Open MPI inside a batch script": ({**BATCH_SCRIPT, **OPENMPI}, ("openmpi", 5, 8, 1, 4)),
    "srun": (srun(3, 1, 1, 4, "2(x2)"), ("slurm", 3, 4, 1, 2)),
    "srun --mpi=pmi2": (
        {**srun(3, 1, 1, 4, "2(x2)"), "PMI_RANK": "3", "PMI_SIZE": "4"},
        ("slurm", 3, 4, 1, 2),
    ),
    "srun, the last and smaller node": (srun(6, 0, 3, 7, "2(x3),1"), ("slurm", 6, 7, 0, 1)),
    "srun, a node of the repeated ones": (srun(5, 1, 2, 7, "2(x3),1"), ("slurm", 5, 7, 1, 2)),
    "srun on one node": (srun(1, 1, 0, 2, "2"), ("slurm", 1, 2, 1, 2)),
    "a batch script without a step": (BATCH_SCRIPT, ("none", 0, 1, 0, 1)),
    "a pod of a PyTorchJob": (
        {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"},
        ("env", 1, 3, 0, 1),
    ),
    "by hand": (
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        ("env", 1, 2, 1, 2),
    ),
    "a world of one": ({"WORLD_SIZE": "1"}, ("none", 0, 1, 0, 1)),
}


@pytest.mark.parametrize("case", sorted(IDENTITIES))
def test_identity(case: str) -> None:
    env, expected = IDENTITIES[case]
    found = WorkerIdentity.from_env(env)
    assert (
        found.launcher,
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_world_size,
    ) == expected


# environment -> what the error says, what it advises
REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "rank beyond the world": (
        {**HYDRA, "PMI_RANK": "4"},
        "intel-mpi says rank 4 of 4, local rank 0 of 2, which cannot be",
        "use one launcher",
    ),
    "negative rank": ({**HYDRA, "PMI_RANK": "-1"}, "rank -1 of 4", "use one launcher"),
    "local rank beyond the host": (
        {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "4"},
        "local rank 4 of 4",
        "stale",
    ),
    "more local ranks than ranks": (
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"},
        "0 of 4",
        "stale",
    ),
    "no ranks at all": ({**HYDRA, "PMI_SIZE": "0"}, "rank 2 of 0", "use one launcher"),
    "garbled": (
        {**TORCHRUN, "WORLD_SIZE": "four"},
        "WORLD_SIZE is 'four', and a whole number is needed",
        "plough run",
    ),
    "empty": ({**TORCHRUN, "LOCAL_RANK": ""}, "LOCAL_RANK is '', and a whole number is needed", "torchrun"),
    "half a hydra": (
        {"PMI_RANK": "0", "PMI_SIZE": "2"},
        "MPI_LOCALRANKID is not set",
        "the launcher sets it",
    ),
    "no size from hydra": ({"PMI_RANK": "0", "MPI_LOCALRANKID": "0"}, "PMI_SIZE is not set", "the launcher"),
    # Such a process would otherwise train alone beside its peers.
    "a rank without a world": ({"RANK": "0"}, "WORLD_SIZE is not set", "the launcher sets it"),
    "a world without a rank": ({"WORLD_SIZE": "4"}, "RANK is not set", "the launcher sets it"),
    "garbled pod": ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK is '1.0'", "the launcher sets it"),
    "a node Slurm does not list": (srun(0, 0, 2, 4, "2(x2)"), "'2(x2)' has no entry for node 2", "srun"),
    "a node before the first": (srun(0, 0, -1, 4, "2(x2)"), "has no entry for node -1", "srun"),
    "unreadable tasks per node": (srun(0, 0, 0, 4, "two"), "='two' cannot be read", "srun sets it"),
    "no tasks per node": (
        {k: v for k, v in srun(0, 0, 0, 2, "2").items() if k != "SLURM_STEP_TASKS_PER_NODE"},
        "=None has no entry for node 0",
        "srun",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_does_not_add_up(case: str) -> None:
    env, cause, hint = REFUSED[case]
    with pytest.raises(ContractError) as caught:
        WorkerIdentity.from_env(env)
    assert cause in caught.value.cause
    assert hint in str(caught.value.hint)


def test_an_identity_reads_back_from_what_it_hands_on() -> None:
    identity = WorkerIdentity.from_env(OPENMPI)
    assert identity.to_env() == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
    }
    again = WorkerIdentity.from_env(identity.to_env())
    assert (again.rank, again.world_size, again.local_rank, again.local_world_size) == (5, 8, 1, 4)


FULL = Contract(
    identity=WorkerIdentity.from_env(HYDRA),
    backend="gloo",
    threads=23,
    cpus=(1, 2, 3),
    memory=MemoryPolicy(mode="bind", nodes=(0, 2)),
    preloads=("/lib/libtcmalloc.so.4",),
    hosts=2,
    problems=('memory "could not" be bound: né',),
)


@pytest.mark.parametrize("contract", [FULL, Contract(identity=single_process(), threads=1)])
def test_a_contract_reads_back(contract: Contract) -> None:
    assert Contract.from_env(contract.to_env()) == contract


def test_ranks_are_told_who_they_are_and_a_process_alone_is_not() -> None:
    assert FULL.to_env().items() >= FULL.identity.to_env().items()
    assert set(Contract(identity=single_process(), threads=1).to_env()) == {Env.PLOUGH_CONTRACT}


def test_no_contract() -> None:
    assert Contract.from_env({}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"identity": 3, "threads": 1}',
        FULL.to_env()[Env.PLOUGH_CONTRACT].replace('"threads"', '"strings"'),
        '{"threads": "\udcff"}',  # bytes that are not UTF-8, as os.environ shows them
    ],
)
def test_a_garbled_contract(text: str) -> None:
    with pytest.raises(ContractError, match="PLOUGH_CONTRACT is garbled") as caught:
        Contract.from_env({Env.PLOUGH_CONTRACT: text})
    assert "do not set it by hand" in str(caught.value.hint)


def test_a_contract_with_an_impossible_identity() -> None:
    text = FULL.to_env()[Env.PLOUGH_CONTRACT].replace('"rank":2', '"rank":9')
    with pytest.raises(ContractError, match="rank 9 of 4"):
        Contract.from_env({Env.PLOUGH_CONTRACT: text})


def test_a_memory_policy_in_words() -> None:
    assert str(MemoryPolicy(mode="first-touch")) == "first-touch"
    assert str(MemoryPolicy(mode="bind", nodes=(0, 2))) == "bind to node 0,2"


def test_every_variable_is_named_once() -> None:
    names = [value for key, value in vars(Env).items() if not key.startswith("_")]
    assert len(names) == len(set(names))
