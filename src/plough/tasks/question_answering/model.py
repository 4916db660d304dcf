"""Load the encoder and its tokenizer through transformers, with its many ways to fail said in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer

from plough.errors import ModelError, PloughError, UsageError

__all__ = ["has_idle_parameters", "load_model", "load_tokenizer", "set_dropout"]

# Each family names its own; classifier and summary dropouts sit on heads that answers do not use.
DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),  # BERT and its kin
    *("dropout", "attention_dropout", "activation_dropout"),  # DistilBERT, BART
    *("resid_pdrop", "embd_pdrop", "attn_pdrop"),  # GPT-2
    *("hidden_dropout", "embedding_dropout", "mlp_dropout"),  # ModernBERT and later
)


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
    if tokenizer.pad_token is None:  # models attend to none, so any token will do
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def load_model(
    name: str,
    *,
    config: str | None = None,
    dropout: float | None = None,
    attention: str | None = None,
    **options: Any,
) -> Any:
    """A question answering model; its head is new where the folder has none.

    dropout: probability for all layers and attention, instead of the model's own. attention:
    transformers' attn_implementation.
    Raises ModelError, also when the model has no setting that a dropout could go into.
    """
    try:
        loaded = AutoConfig.from_pretrained(config or name, **options)
        if dropout is not None:
            set_dropout(loaded, dropout)
        if attention is not None:
            options["attn_implementation"] = attention
        return AutoModelForQuestionAnswering.from_pretrained(name, config=loaded, **options)
    except PloughError:
        raise
    except Exception as error:
        raise _cannot_load("model", name, error) from error


def set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout probability of a model's configuration. Raises ModelError, UsageError."""
    if not 0 <= dropout < 1:
        raise UsageError(f"--dropout {dropout}: a probability from 0 to below 1 is needed")
    names = [name for name in DROPOUTS if isinstance(getattr(config, name, None), int | float)]
    if not names:
        raise ModelError(f"--dropout: the configuration of {config.model_type} has no dropout to set")
    for name in names:
        setattr(config, name, dropout)


def has_idle_parameters(model: Any, features: Any, tokenizer: Any) -> bool:
    """Whether some trainable parameter gets no gradient, found out with one short window.

    DistributedDataParallel must look for such parameters each step, or must not, and has to be told.
    """
    names = [name for name in tokenizer.model_input_names if name in features.column_names]
    names += ["start_positions", "end_positions"]
    model(**{name: torch.tensor([features[0][name]]) for name in names}).loss.backward()
    idle = any(p.requires_grad and p.grad is None for p in model.parameters())
    model.zero_grad(set_to_none=True)
    return idle


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
