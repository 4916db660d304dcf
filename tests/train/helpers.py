"""Models and data small enough that a training run takes seconds, and real `plough` processes to run them in.

Scripts that tests start import this file too: everything here is the same in every rank.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForQuestionAnswering, LlamaConfig, LlamaForCausalLM

REPOSITORY = Path(__file__).resolve().parents[2]
VOCABULARY = 64


def tiny_bert(*, dropout: float = 0.0, seed: int = 0, **settings: Any) -> BertForQuestionAnswering:
    """BERT with 2 layers of 32, and random weights that depend on `seed` alone."""
    torch.manual_seed(seed)
    config = BertConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        | settings
    )
    return BertForQuestionAnswering(config)


def tiny_llama(*, seed: int = 0, vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=128,
        )
    )


def qa_rows(count: int, *, length: int = 16, seed: int = 0) -> list[dict[str, list[int] | int]]:
    """Random tokens; the answer is token 5 and the one after it, which can be learned."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, list[int] | int]] = []
    for _ in range(count):
        ids = torch.randint(6, VOCABULARY, (length,), generator=generator)
        at = int(torch.randint(0, length - 1, (1,), generator=generator))
        ids[at] = 5
        row = {"input_ids": ids.tolist(), "attention_mask": [1] * length}
        rows.append({**row, "start_positions": at, "end_positions": at + 1})
    return rows


def arguments_for(folder: Path, **settings: Any) -> dict[str, Any]:
    """Training arguments that keep a test's run small and quiet."""
    return {
        "output_dir": str(folder),
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "seed": 7,
    } | settings


def losses(log_history: Sequence[dict[str, float]]) -> list[float]:
    return [entry["loss"] for entry in log_history if "loss" in entry]


def plough(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run `plough` with these arguments, in a clean environment; never raises for an exit code."""
    kept = {k: v for k, v in os.environ.items() if not re.match("OMP_|KMP_|MALLOC_|LD_PRELOAD|PLOUGH_", k)}
    return subprocess.run(
        [sys.executable, "-m", "plough", *map(str, command)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def two_ranks(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, flags: Sequence[str] = ()):  # type: ignore[no-untyped-def]
    """`plough run --ranks 2`, on a single core too."""
    return plough("run", "--ranks", "2", "--oversubscribe", *flags, *command, cwd=cwd, env=env)


def last_json(text: str) -> Any:
    """The last line of a rank's output that is a JSON object, its rank prefix taken off."""
    lines = [re.sub(r"^\[\d+\] ", "", line) for line in text.splitlines()]
    return json.loads(next(line for line in reversed(lines) if line.startswith("{")))
