"""What a rank does to measure, and two real ones, started as `plough tune` starts them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from plough.contract import Env
from plough.errors import ModelError, UsageError
from plough.plan import PlanRequest
from plough.report import ONE_BUCKET
from plough.topology import probe
from plough.tune import ranks
from plough.tune.candidates import Setting, space_of
from plough.tune.measure import Bench
from plough.tune.ranks import LEAST, MOST, PILOTS, WARM_UPS, Clock, Samples, build_model
from plough.tune.store import load
from plough.tune.workload import Workload
from tests.train.helpers import plough

SMALL: dict[str, dict[str, Any]] = {
    "bert": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    },
    "gpt2": {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 32,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}


def folder_of(tmp_path: Path, kind: str = "bert", *architectures: str, **changes: Any) -> str:
    """A folder with the configuration of a model of 64 tokens, and nothing else."""
    config = {"model_type": kind, "vocab_size": 64, **SMALL.get(kind, {}), **changes}
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": list(architectures)}))
    return str(tmp_path)


def workload(model: str, **changes: Any) -> Workload:
    return Workload(**{"model": model, "seq": 8, "batch": 2, "steps": 2, **changes})


HEADS = [
    ("bert", (), "BertForQuestionAnswering", {"start_positions", "end_positions"}),
    ("bert", ("BertForMaskedLM",), "BertForQuestionAnswering", {"start_positions", "end_positions"}),
    ("bert", ("BertForSequenceClassification",), "BertForSequenceClassification", {"labels"}),
    ("gpt2", ("GPT2LMHeadModel",), "GPT2LMHeadModel", {"labels"}),
    ("gpt2", ("GPT2ForSequenceClassification",), "GPT2ForSequenceClassification", {"labels"}),
]


@pytest.mark.parametrize(("kind", "architectures", "expected", "labels"), HEADS)
def test_the_head_and_its_labels(
    kind: str, architectures: tuple[str, ...], expected: str, labels: set[str], tmp_path: Path
) -> None:
    load_ = workload(folder_of(tmp_path, kind, *architectures))
    model = build_model(load_, ranks=1)
    assert type(model).__name__ == expected
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float32"}
    samples = Samples(load_, model, count=5)
    assert len(samples) == 5
    assert set(samples[0]) == {"input_ids", "attention_mask"} | labels
    batch = {name: value.unsqueeze(0) for name, value in samples[3].items()}
    assert model(**batch).loss.isfinite()


def test_the_type_of_saved_weights_does_not_matter(tmp_path: Path) -> None:
    model = build_model(workload(folder_of(tmp_path, dtype="bfloat16")), ranks=1)
    assert str(next(model.parameters()).dtype) == "torch.float32"


def test_a_text_that_is_too_long_for_the_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--seq 33: .* takes at most 32 tokens") as caught:
        build_model(workload(folder_of(tmp_path), seq=33), ranks=1)
    assert caught.value.hint == "--seq 32"


def test_models_that_cannot_be_measured(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ModelError, match="a vit model takes no text"):
        build_model(workload(folder_of(tmp_path / "a", "vit")), ranks=1)
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="its configuration cannot be read"):
        build_model(workload(str(tmp_path / "a")), ranks=1)
    with pytest.raises(ModelError, match="its configuration cannot be read: ") as caught:
        build_model(workload(folder_of(tmp_path / "a", "no-such-kind")), ranks=1)
    assert "\n" not in caught.value.cause


def test_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = folder_of(tmp_path)
    machine = SimpleNamespace(
        limits=SimpleNamespace(memory_bytes=1 << 18), memory_bytes=1 << 40, hostname="here"
    )
    monkeypatch.setattr(ranks, "probe", lambda: machine)
    assert build_model(workload(name), ranks=1).num_parameters() < (1 << 18) // 16
    with pytest.raises(ModelError, match=r"take 0\.0 GiB in 99 ranks, activations aside, and here has 0\.0"):
        build_model(workload(name), ranks=99)


class Ticking:
    """A clock of which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize(
    ("changes", "timed"),
    [
        ({"steps": 2}, 2),
        ({"steps": 300}, 300),
        ({"steps": None, "seconds": 30.0}, 30),
        ({"steps": None, "seconds": 0.1}, LEAST),
        ({"steps": None, "seconds": 1e6}, MOST),
    ],
)
def test_as_many_steps_as_there_is_room_for(
    changes: dict[str, Any], timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plough.tune.ranks.time.perf_counter", Ticking())
    clock = Clock(workload("m", **changes))
    control = SimpleNamespace(should_training_stop=False)
    steps = 0
    while not control.should_training_stop:
        clock.on_step_end(None, None, control)
        steps += 1
    assert steps == WARM_UPS + PILOTS + timed
    assert clock.times == [1.0] * timed


def test_two_real_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    machine = probe()
    # Even where there is a single core.
    request = PlanRequest(ranks=2, threads=1, oversubscribe=True, user_environment={})
    load_ = workload(folder_of(tmp_path, "bert"), precision="bf16", steps=3)
    default = space_of(machine, request).default
    bench = Bench(machine=machine, request=request, launcher="local", workload=load_, default=default)
    result, timing = bench.measure(Setting(threads=1, workers=2, bucket_mb=ONE_BUCKET))
    assert result.code == 0, capfd.readouterr().err
    assert timing is not None
    assert timing.steps == 3
    assert 0 < timing.p10 <= timing.ms <= timing.p90
    assert timing.backend == "ccl"
    config = AutoConfig.from_pretrained(load_.model)
    assert timing.parameters == build_model(load_, ranks=1).num_parameters() > config.vocab_size * 16
    assert timing.gradient_mb == pytest.approx(timing.parameters * 4 / 2**20, abs=1e-3)
    # The setting was in force, and training was what it is under `plough run`.
    assert [facts.bucket_mb for facts in result.facts] == [ONE_BUCKET, ONE_BUCKET]
    assert [facts.threads for facts in result.facts] == [1, 1]
    assert result.facts[0].precision == "bf16 autocast, fp32 weights"
    assert result.facts[0].steps == WARM_UPS + PILOTS + 3
    assert "Warning: find_unused_parameters" not in capfd.readouterr().err


def test_an_error_of_the_ranks_is_said_once(tmp_path: Path) -> None:
    model = folder_of(tmp_path, "vit")
    done = plough("tune", "--model", model, "--ranks", "1", cwd=tmp_path)
    if "there is nothing to tune" in done.stderr:
        pytest.skip("needs two cores")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("error: --model") == 1
    assert "a vit model takes no text" in done.stderr


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    model = folder_of(tmp_path, "bert")
    config = {Env.XDG_CONFIG_HOME: str(tmp_path / "config")}
    flags = ["--ranks", "2", "--oversubscribe"]
    words = ["--model", model, "--seq", "8", "--batch", "2", "--steps", "3", "--rounds", "3", *flags]
    done = plough("tune", *words, cwd=tmp_path, env=config, timeout=900)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "config" / "plough" / "tuned").iterdir()
    found = load(path)
    assert {one.setting for one in found.measured} >= {found.best, found.chosen, found.default}
    assert "<- chosen" in done.stdout
    plan = plough("plan", *flags, cwd=tmp_path, env=config)
    assert f"tuned on {found.date[:10]} with" in plan.stdout
