"""Ranks that would train alone, copies that drift, a plan that is not in force: errors, said once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plough.contract import Contract, Env, MemoryPolicy, single_process
from plough.errors import ContractError
from plough.train.guard import Fingerprint, _fingerprint, _judge
from tests.train.helpers import REPOSITORY, plough, two_ranks

LOOP = """
import sys
import torch, torch.distributed as dist

def train(model, seed):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # all norms are equal now
        optimizer.step()

def fresh():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))

how = sys.argv[1]
if how != "alone":
    dist.init_process_group("gloo")
seed = dist.get_rank() if how != "alone" else 0
if how == "together":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    train(torch.nn.parallel.DistributedDataParallel(fresh()), seed)
    model = fresh()
    for part in [*model, model]:
        fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    train(model, seed)
else:
    train(fresh(), seed)
print("trained to the end")
"""


def loop(how: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "loop.py").write_text(LOOP)
    return two_ranks("loop.py", how, cwd=folder, env=env)


def test_ranks_that_form_no_group_are_an_error_said_once(tmp_path: Path) -> None:
    done = loop("alone", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "each rank would train alone on all the data" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "trained to the end" not in done.stdout


def test_copies_that_nothing_keeps_together_are_an_error(tmp_path: Path) -> None:
    done = loop("apart", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "step with different gradients" in done.stderr
    assert "DistributedDataParallel" in done.stderr
    assert f"{Env.PLOUGH_CHECK_REPLICAS}=0" in done.stderr


def test_copies_may_differ_on_purpose(tmp_path: Path) -> None:
    done = loop("apart", tmp_path, **{Env.PLOUGH_CHECK_REPLICAS: "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained to the end") == 2


def test_ddp_and_fsdp_are_not_accused(tmp_path: Path) -> None:
    done = loop("together", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained to the end") == 2
    assert "world size 2, backend gloo" in done.stderr
    assert "6 steps" in done.stderr


def fingerprint(scale: float = 1.0, seed: int = 0, *, same_weights: bool = True) -> Fingerprint:
    torch.manual_seed(0 if same_weights else seed)
    model = torch.nn.Linear(100, 100)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    found = _fingerprint(torch.optim.SGD(model.parameters(), lr=0.1))
    assert found is not None
    return found


def test_what_is_and_is_not_a_drift() -> None:
    whole = fingerprint()
    for fine in (
        whole,
        fingerprint(1 + 1e-5),  # rounding
        fingerprint(seed=1, same_weights=False),  # parts of a model, not copies
    ):
        _judge([whole, fine])
    for drift in (fingerprint(1.01), fingerprint(seed=1)):
        with pytest.raises(ContractError, match="ranks 0 and 2 hold copies"):
            _judge([whole, whole, drift])
    _judge([fingerprint(0.0), fingerprint(0.0)])
    model = torch.nn.Linear(2, 2)
    assert _fingerprint(torch.optim.SGD(model.parameters(), lr=0.1)) is None  # no gradient, nothing to say


STOCK = """
from transformers import Trainer, TrainingArguments
from tests.train.helpers import arguments_for, qa_rows, tiny_bert
Trainer(
    model=tiny_bert(),
    args=TrainingArguments(**arguments_for("out", max_steps=4, ddp_backend="gloo")),
    train_dataset=qa_rows(64),
).train()
"""


def test_stock_trainer_that_shards_without_ddp_is_caught(tmp_path: Path) -> None:
    """transformers' own Trainer with --ddp_backend gloo and no --use_cpu: sharded data, no averaging."""
    (tmp_path / "stock.py").write_text(STOCK)
    done = plough("run", "--ranks", "2", "--oversubscribe", "--no-compat", "stock.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "step with different gradients" in done.stderr


def contract(**promised: object) -> Contract:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return Contract(**({"identity": single_process(), "threads": 1, "cpus": cpus} | promised))  # type: ignore[arg-type]


BROKEN = {
    "preload": (contract(preloads=("/usr/lib/libnot-there.so",)), "libnot-there.so was to be preloaded"),
    "threads": (
        contract(threads=max(2, os.cpu_count() or 1)),
        f"was planned for {max(2, os.cpu_count() or 1)} threads and torch computes with 1",
    ),
    "affinity": (contract(cpus=(4094, 4095)), "was planned for cores 4094,4095; it is on"),
    "memory": (
        contract(memory=MemoryPolicy(mode="bind", nodes=(0,))), "memory was to be bound to node 0"
    ),
}  # fmt: skip


def worker(promise: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text("print('the script ran')\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PLOUGH_", "OMP_", "KMP_", "LD_"))}
    return subprocess.run(
        [sys.executable, "-m", "plough.worker", "script.py"],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", Env.PLOUGH_CONTRACT: promise, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("what", BROKEN)
def test_what_was_planned_and_is_not_so_stops_the_rank_before_the_script(what: str, tmp_path: Path) -> None:
    if what == "threads" and os.cpu_count() == 1:
        pytest.skip("on one core more threads than cores are a wish that cannot be met, not a broken promise")
    promise, words = BROKEN[what]
    done = worker(promise.to_env()[Env.PLOUGH_CONTRACT], tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "hint: " in done.stderr
    assert "the script ran" not in done.stdout


def test_a_kept_contract_lets_the_script_run(tmp_path: Path) -> None:
    # What the shim could not do is a problem to report, not a broken promise.
    promise = contract(
        cpus=(4094,),
        memory=MemoryPolicy(mode="bind", nodes=(0,)),
        problems=(
            "cores 4094 could not be bound to: Invalid argument",
            "memory could not be bound to node 0 (Operation not permitted); first touch keeps it there",
        ),
    )
    done = worker(promise.to_env()[Env.PLOUGH_CONTRACT], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the script ran" in done.stdout


def test_a_garbled_contract_is_an_error(tmp_path: Path) -> None:
    done = worker('{"identity"', tmp_path)
    assert done.returncode == 2
    assert f"{Env.PLOUGH_CONTRACT} is garbled" in done.stderr
