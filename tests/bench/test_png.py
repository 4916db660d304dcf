"""PNG where matplotlib is installed, and what is said where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from plough.bench.figures import latency_chart
from plough.bench.png import require_matplotlib, write_png
from plough.errors import UsageError
from tests.bench.made_up import result


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'plough\[plot\]'"):
        require_matplotlib()


def test_with_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_png(latency_chart(result()), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
