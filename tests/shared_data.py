"""Where the data is that tests may read but the repository does not hold: ../shared, or $PLOUGH_SHARED."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[2] / "shared"


def shared_path(relative: str) -> Path:
    """The file or folder `relative` to shared/; skips the calling test, saying so, when it is absent."""
    path = Path(os.environ.get("PLOUGH_SHARED") or _DEFAULT) / relative
    if not path.exists():
        pytest.skip(f"{path} is absent (set PLOUGH_SHARED to the folder that holds {relative})")
    return path
