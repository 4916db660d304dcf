"""The model card of a fine-tuned folder: what it is, from what, how measured, how to use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plough._version import __version__
from plough.files import write_text_atomic

__all__ = ["write_card"]


def write_card(folder: Path, *, model_args: Any, data_args: Any, training: Any) -> None:
    """Write README.md from the run's own metrics (all_results.json in `folder`)."""
    results_file = folder / "all_results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    base = Path(model_args.model_name_or_path).name or model_args.model_name_or_path
    data = data_args.dataset_name or Path(data_args.train_file).name
    rows = [
        ("learning rate", training.learning_rate),
        ("epochs", training.num_train_epochs),
        ("batch per rank", training.per_device_train_batch_size),
        ("gradient accumulation", training.gradient_accumulation_steps),
        ("ranks", training.world_size),
        ("precision", "bf16 autocast, fp32 weights" if training.bf16 else "fp32"),
        ("window", f"{data_args.max_seq_length} tokens, overlap {data_args.doc_stride}"),
        ("seed", training.seed),
    ]
    scores = [
        f"| {name} | {results[key]:.2f} |"
        for name, key in (("exact match", "eval_exact_match"), ("F1", "eval_f1"))
        if key in results
    ]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: question-answering",
        "tags: [question-answering, plough]",
        "---",
        "",
        f"# {base} fine-tuned on {data}",
        "",
        f"Finds the answer to a question in a text. Trained with Plough {__version__} on CPUs.",
        "",
        *(["| on the validation questions | % |", "| --- | --- |", *scores, ""] if scores else []),
        "| setting | value |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "```bash",
        'plough ask --model . --question "..." --context "..."',
        "```",
        "",
        "training_args.json has every training argument, plough.json where the ranks were placed, and",
        "data_report.json what reading the data repaired and dropped.",
        "",
    ]
    write_text_atomic(folder / "README.md", "\n".join(lines))
