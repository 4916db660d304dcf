"""`plough probe`: as words, and as JSON that `plough plan` reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from plough.cli.probe import render
from plough.topology import Machine, probe
from plough.topology.machine import Software
from tests.cli.conftest import Plough
from tests.machines.trees import described

SHOWN = ["arm-1x80", "pod-8-of-384-quota", "vm-16-sockets", "vm-2-core", "xeon-2x32-cxl", "xeon-2x56-snc4"]


@pytest.mark.parametrize("name", SHOWN)
def test_in_words(name: str, snapshot: SnapshotAssertion) -> None:
    assert render(described(name)) == snapshot


def test_software(snapshot: SnapshotAssertion) -> None:
    software = Software(
        tcmalloc="/usr/lib/libtcmalloc_minimal.so.4",
        jemalloc="/usr/lib/libjemalloc.so.2",
        intel_openmp="/venv/lib/libiomp5.so",
        mpirun="/venv/bin/mpirun",
        mpi_flavour="intel",
    )
    assert render(replace(described("vm-2-core"), software=software)) == snapshot


def test_an_mpirun_of_unknown_make() -> None:
    odd = replace(described("vm-2-core"), software=Software(mpirun="/opt/bin/mpirun"))
    assert "/opt/bin/mpirun (of a kind Plough does not know)" in render(odd)


def test_json_is_what_plan_reads(plough: Plough, tmp_path: Path) -> None:
    said = plough("probe", "--json")
    assert said.code == 0
    assert Machine.from_json(said.out) == probe()
    (tmp_path / "node.json").write_text(said.out)
    assert plough("plan", "--machine", str(tmp_path / "node.json")).code == 0


def test_this_machine_in_words(plough: Plough) -> None:
    said = plough("probe")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0].split() == ["host", probe().hostname]


def test_no_machine_there(plough: Plough, snapshot: SnapshotAssertion) -> None:
    assert plough("probe", "--root", "/nonexistent") == snapshot
