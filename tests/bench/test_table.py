"""A measurement as text."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from plough.bench.table import facts, legend, tables
from tests.bench.made_up import result, setup

CASES = {
    "everything": result(),
    "without oneCCL": result(names=("ccl", "gloo"), notes=("oneCCL is left out: it is not installed",)),
    "one backend": result(names=("gloo",), collectives=("all_reduce",)),
    "without ccl": result(names=("gloo", "oneccl"), collectives=("all_reduce", "barrier")),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_whole(case: str, snapshot: SnapshotAssertion) -> None:
    shown = [f"{name}: {words}" for name, words in facts(CASES[case].setup)]
    assert "\n".join([*shown, *tables(CASES[case]), *legend(CASES[case])]) == snapshot


def test_tables_fit_a_terminal_and_stand_in_columns() -> None:
    for one in tables(result()):
        _, _, *lines = one.splitlines()
        assert len({len(line) for line in lines}) == 1
        assert len(lines[0]) <= 80


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "2 on node0, 24 cores each, started by mpiexec.hydra"),
        ({"cores": (1, 1)}, "2 on node0, 1 core each, started by mpiexec.hydra"),
        ({"cores": (0, 0), "launcher": "env"}, "2 on node0, not bound to cores, started by env"),
        (
            {"hosts": ("a", "b"), "cores": (23, 24), "launcher": "slurm"},
            "2 on 2 hosts, 23 to 24 cores each, started by srun",
        ),
    ],
)
def test_who_the_ranks_are(changes: dict[str, object], words: str) -> None:
    assert dict(facts(setup(**changes)))["ranks"] == words  # type: ignore[arg-type]
