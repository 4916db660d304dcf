"""The public names, and the promise that planning does not wait for torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import plough

HEAVY = ("torch", "transformers", "accelerate", "datasets", "numpy")


def test_public_names() -> None:
    # In an interpreter of its own, since the names of training bring torch and transformers along.
    code = "import plough; print([name for name in plough.__all__ if getattr(plough, name) is None])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


def test_all_is_sorted_and_complete() -> None:
    assert plough.__all__ == sorted(plough.__all__)
    assert set(plough._HOMES) | {"PloughError", "__version__"} == set(plough.__all__)
    assert dir(plough) == plough.__all__


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'plough' has no attribute 'Planner'"):
        _ = plough.Planner


@pytest.mark.parametrize(
    "statement",
    [
        "import plough",
        "import plough.plan",
        "import plough.topology",
        "import plough.launchers, plough.launchers.shim, plough.launchers.relay",
        "import plough.cli.main, plough.cli.run, plough.cli.exec, plough.cli.plan, plough.cli.probe",
        "import plough.cli.build, plough.comm.build",
        "import plough.cli.tune, plough.tune.measure",
        "import plough.cli.bench",
        "from plough.cli.main import main; main(['plan'])",
    ],
)
def test_a_fresh_interpreter_has_no_torch(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
