"""The command line in this process, as a user would see it in a pipe 80 columns wide."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from plough.cli.main import main
from plough.contract import Env
from plough.plan import WATCHED


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Plough = Callable[..., Said]


@pytest.fixture
def plough(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Plough:
    """Runs `plough` with the words given. This Python's path reads PYTHON."""
    for name in (*WATCHED, "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv(Env.NO_COLOR, "1")

    def plough(*words: str) -> Said:
        capsys.readouterr()
        try:
            code = main(list(words))
        except SystemExit as end:  # --help and --version
            code = int(end.code or 0)
        out, err = (_settled(text) for text in capsys.readouterr())
        return Said(code, out, err)

    return plough


def _settled(text: str) -> str:
    """Without what differs from one Python to the next."""
    text = text.replace(sys.executable, "PYTHON")
    return re.sub(r"\(choose from [^)]*\)", lambda found: found[0].replace("'", ""), text)
