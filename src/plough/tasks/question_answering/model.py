"""Load the encoder and its tokenizer through transformers, with its many ways to fail said in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer

from plough.errors import ModelError

__all__ = ["load_model", "load_tokenizer"]


def load_tokenizer(name: str, **options: Any) -> Any:
    """A fast tokenizer: windows need character offsets. Raises ModelError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, **options)
    except Exception as error:
        raise _cannot_load("tokenizer", name, error) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"{name}: its tokenizer has no fast version, and only those know character offsets",
            hint="transformers' list of fast tokenizers says which models have one",
        )
    return tokenizer


def load_model(name: str, *, config: str | None = None, **options: Any) -> Any:
    """A question answering model; its head is new where the folder has none. Raises ModelError."""
    try:
        loaded = AutoConfig.from_pretrained(config or name, **options)
        return AutoModelForQuestionAnswering.from_pretrained(name, config=loaded, **options)
    except Exception as error:
        raise _cannot_load("model", name, error) from error


def _cannot_load(what: str, name: str, error: Exception) -> ModelError:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").exists():
            return ModelError(
                f"{name}: the folder has no config.json, so it holds no transformers model",
                hint="give the folder that save_pretrained or a training run wrote",
            )
        if "Unrecognized configuration class" in text:
            return ModelError(
                f"{name}: transformers has no question answering head for this kind of model",
                hint="encoders do: BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa and their like",
            )
        return ModelError(f"{name}: the {what} cannot be loaded: {text}")
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return ModelError(f"{name}: no such model folder", hint="give a folder, or a name on the model hub")
    return ModelError(
        f"{name}: neither a folder here nor a model that the hub would give: {text}",
        hint="check the spelling and the network; offline, give the path of a folder",
    )
