"""Which questions a run works on: from local files or a data set's name to examples and their account."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from plough.errors import DataError
from plough.tasks.question_answering.arguments import DataArguments
from plough.tasks.question_answering.examples import Example, ReadReport
from plough.tasks.question_answering.reading import read_examples

__all__ = ["read_split"]

_FILES = {"train": "train_file", "validation": "validation_file", "test": "test_file"}
_LIMITS = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}


def read_split(
    split: str, data: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> tuple[list[Example], ReadReport]:
    """The examples of "train", "validation" or "test".

    Raises DataError for a file or data set that cannot be read, and, with --strict_data, for any flaw.
    """
    options: dict[str, Any] = {
        "require_answers": split == "train",
        "strict": data.strict_data,
        "limit": getattr(data, _LIMITS[split]),
    }
    path = getattr(data, _FILES[split])
    if path is not None:
        return read_examples(path, **options)
    assert data.dataset_name is not None
    with tempfile.TemporaryDirectory(prefix="plough-data-") as folder:
        file = Path(folder) / f"{data.dataset_name.replace('/', '-')}-{split}.parquet"
        _download(data, split, cache_dir, token).to_parquet(str(file))
        return read_examples(file, **options)


def _download(data: DataArguments, split: str, cache_dir: str | None, token: str | None) -> Any:
    from datasets import load_dataset

    name = data.dataset_name
    try:
        return load_dataset(name, data.dataset_config_name, split=split, cache_dir=cache_dir, token=token)
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"--dataset_name {name}: no {split} questions to be had: {text}",
            hint=f"check the spelling and the network; offline, give --{_FILES[split]} FILE",
        ) from error
