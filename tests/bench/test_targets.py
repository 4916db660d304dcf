"""The scripts in benchmarks/ that judge: by made-up figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from plough.bench.sizes import KIB, MIB
from tests.bench.made_up import result

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_collectives_against_their_targets() -> None:
    # gloo takes 60 times as long at 64 B, 29 times at 64 KiB, 5 times at 25 MiB; oneCCL twice throughout.
    collectives = script("collectives")
    made_up = result(("all_reduce", "broadcast"), dtypes=("float32",), sizes=(64, 64 * KIB, MIB, 25 * MIB))
    found = {(one.other, one.size): (one.wanted, one.passed) for one in collectives.judge(made_up)}
    assert found == {
        ("gloo", 64): (40, True),
        ("gloo", 64 * KIB): (40, False),
        ("gloo", MIB): (None, True),
        ("gloo", 25 * MIB): (3, True),
        ("oneccl", 64): (1, True),
        ("oneccl", 64 * KIB): (1, True),
        ("oneccl", MIB): (1, True),
        ("oneccl", 25 * MIB): (1.5, True),
    }
    lines = [str(one) for one in collectives.judge(made_up)]
    assert lines[0] == (
        "float32      64 B  ccl       5.0 us    gloo     300.0 us   59.93x  PASS  (at least 40)"
    )
    assert "FAIL" in lines[2]
    assert not lines[4].endswith(" ")


def test_judging_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collectives = script("collectives")
    kept = tmp_path / "kept.json"
    kept.write_text(result(("all_reduce",)).to_json())
    monkeypatch.setattr("sys.argv", ["collectives.py", "--show", str(kept)])
    assert collectives.main() == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == "2 of 12 targets missed"
    assert out[-1].startswith('{"machine": "Intel(R) Xeon(R) Platinum"')


def test_communication_that_is_not_hidden() -> None:
    ddp_overlap = script("ddp_overlap")
    times = {
        "no_sync": [[10.0, 10.0], [20.0, 20.0]],
        "ccl": [[11.0, 11.0], [23.0, 23.0]],
        "gloo": [[15.0, 15.0], [25.0, 25.0]],
    }
    assert ddp_overlap.summary(times) == {
        "no_sync_ms": 15.0,
        "ccl_ms": 17.0,
        "gloo_ms": 20.0,
        "ccl_exposed_ms": 2.0,
        "gloo_exposed_ms": 5.0,
    }
