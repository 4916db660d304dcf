"""`plough plan`: the whole text for every machine, JSON, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

import plough.cli.plan
from plough.plan import LaunchPlan, PlanRequest, make_plan
from plough.topology.machine import Software
from tests.cli.conftest import Plough
from tests.machines.trees import NAMES, described, expected_file


def file(name: str) -> str:
    return str(expected_file(name))


@pytest.mark.parametrize("name", NAMES)
def test_plan_of_every_machine(name: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    said = plough("plan", "--machine", file(name))
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot
    assert max(map(len, said.out.splitlines())) <= 160


OPTIONS = {
    "four ranks": ("xeon-2x24", "--ranks 4"),
    "three ranks": ("xeon-2x24", "--ranks 3"),
    "ranks per socket": ("xeon-2x56-snc4", "--ranks-per-socket 1"),
    "ranks per node": ("xeon-2x8-no-numa", "--ranks-per-node 1"),
    "few threads": ("xeon-2x24", "--threads 8 --reserve-cores 0"),
    "reserved cores": ("xeon-2x24", "--reserve-cores 4 --ccl-worker-count 4"),
    "oversubscribed": ("vm-2-core", "--ranks 4 --oversubscribe"),
    "memory left alone": ("xeon-2x24", "--memory first-touch --allocator none"),
    "quota shared": ("pod-8-of-384-quota", "--ranks 2 --reserve-cores 2"),
}


@pytest.mark.parametrize("case", sorted(OPTIONS))
def test_options(case: str, plough: Plough, snapshot: SnapshotAssertion) -> None:
    name, words = OPTIONS[case]
    said = plough("plan", "--machine", file(name), *words.split())
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


def test_this_machine_with_software_and_the_users_variables(
    plough: Plough, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    found = Software(tcmalloc="/lib/libtcmalloc_minimal.so.4", intel_openmp="/venv/lib/libiomp5.so")
    machine = replace(described("xeon-2x24"), hostname="here", software=found)
    monkeypatch.setattr("plough.cli.plan.probe", lambda: machine)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("LD_PRELOAD", "/opt/mine.so")
    monkeypatch.setenv("MASTER_PORT", "29501")
    said = plough("plan")
    assert (said.code, said.err) == (0, "")
    assert said.out == snapshot


def test_two_hosts_are_told_apart(snapshot: SnapshotAssertion) -> None:
    hosts = [replace(described("vm-2-core"), hostname=name) for name in ("node1", "node2")]
    assert plough_cli_render(make_plan(hosts)) == snapshot


def plough_cli_render(plan: LaunchPlan) -> str:
    return plough.cli.plan.render(plan)


@pytest.mark.parametrize("name", NAMES)
def test_json_reads_back(name: str, plough: Plough) -> None:
    said = plough("plan", "--machine", file(name), "--json", "--allocator", "none")
    assert said.code == 0
    expected = make_plan([described(name)], PlanRequest(allocator="none"))
    assert LaunchPlan.from_json(said.out) == expected
    assert json.loads(said.out)["ranks"][0]["threads"] == expected.ranks[0].threads


REFUSED = {
    "contradiction": "plan --machine {xeon-2x24} --ranks 2 --ranks-per-socket 1",
    "too many ranks": "plan --machine {xeon-2x24} --ranks 49",
    "too many ranks per socket": "plan --machine {xeon-2x24} --ranks-per-socket 25",
    "too many threads": "plan --machine {xeon-2x24} --threads 25",
    "too many reserved": "plan --machine {xeon-2x24} --reserve-cores 24",
    "no ranks": "plan --machine {xeon-2x24} --ranks 0",
    "negative reserve": "plan --machine {xeon-2x24} --reserve-cores=-1",
    "no oneCCL workers": "plan --machine {xeon-2x24} --ccl-worker-count 0",
    "quota exceeded": "plan --machine {pod-8-of-384-quota} --ranks 9",
    "quota and sockets": "plan --machine {pod-8-of-384-quota} --ranks-per-socket 1",
    "no tcmalloc": "plan --machine {xeon-2x24} --allocator tcmalloc",
    "no Intel OpenMP": "plan --machine {xeon-2x24} --openmp intel",
    "no file": "plan --machine nowhere.json",
    "a folder": "plan --machine .",
    "not JSON": "plan --machine broken.json",
    "not a machine": "plan --machine plan.json",
    "not text": "plan --machine binary.json",
    "no cores": "plan --machine empty.json",
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refused(
    case: str, plough: Plough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"hostname": ')
    Path("plan.json").write_text(make_plan([described("vm-2-core")]).to_json())
    Path("binary.json").write_bytes(b'{"hostname": "\xff"}')
    Path("empty.json").write_text(replace(described("vm-2-core"), cores=()).to_json())
    words = REFUSED[case].replace("{", "@").replace("}", "").split()
    said = plough(*(file(word[1:]) if word.startswith("@") else word for word in words))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err == snapshot


def test_a_reader_that_stops_early() -> None:
    command = (
        f"set -o pipefail; '{sys.executable}' -m plough plan --machine {file('xeon-8x28')} --json | head -1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


@pytest.mark.parametrize("verb", [["plan"], ["probe"], ["plan", "--json"]])
def test_a_full_disk(verb: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plough", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
