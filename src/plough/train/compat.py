"""Scripts that import Trainer and TrainingArguments from transformers get Plough's, without an edit.

`install` watches for the two modules of transformers that define them. When one has been executed, the
name in it is replaced, before anything else (TRL, Seq2SeqTrainer, the user's subclass) can take it.
Nothing of transformers is imported earlier than the script would have.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["install", "offer"]

_OURS = {
    "transformers.training_args": ("TrainingArguments", "plough.train.arguments"),
    "transformers.trainer": ("Trainer", "plough.train.trainer"),
}


def install() -> None:
    """Start watching. To be called before the user's code imports anything."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        for name, (attribute, ours) in _OURS.items():  # imported already, by a sitecustomize say
            if name in sys.modules:
                offer(name, attribute, getattr(importlib.import_module(ours), attribute))


def offer(module: str, attribute: str, replacement: type) -> None:
    """Put `replacement` in transformers' place if scripts are to get Plough's; else do nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        setattr(sys.modules[module], attribute, replacement)
        package = sys.modules.get("transformers")
        if package is not None and attribute in vars(package):  # its lazy module remembers what it gave
            setattr(package, attribute, replacement)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _OURS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _, ours = _OURS[module.__name__]
        # Imported by our own module: that one offers its class as its last act.
        if ours not in sys.modules:
            importlib.import_module(ours)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # get_source, get_data, ...: inspect and linecache use them
