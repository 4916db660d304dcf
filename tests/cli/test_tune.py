"""`plough tune` with ranks that are made up: what it measures, says and keeps; and who reads what it kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from plough.contract import Env
from plough.launchers import JobResult
from plough.launchers.records import RankRecord
from plough.report import ONE_BUCKET
from plough.topology.machine import Machine, Software
from plough.tune.candidates import Setting
from plough.tune.measure import Bench, Timing
from plough.tune.store import Record, file_name, load, save
from tests.cli.conftest import Plough
from tests.machines.trees import described, expected_file
from tests.tune.made_up import record, timing

WELL = JobResult(code=0, failure=None, log=(), interrupted=False, facts=(), seconds=1.0)
TUNE = ["tune", "--model", "google-bert/bert-large-uncased"]

Outcome = tuple[JobResult, Timing | None]
Costs = Callable[[Setting], float | Outcome]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of two sockets, and a user for whom nothing was tuned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(Env.XDG_CONFIG_HOME, str(tmp_path / "config"))
    Path("train.py").write_text("")
    machine = replace(described("xeon-2x24"), hostname="here", software=Software())
    for verb in ("run", "plan", "tune"):
        monkeypatch.setattr(f"plough.cli.{verb}.probe", lambda: machine)
    return machine


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Costs], list[Setting]]:
    """Makes every setting cost so many milliseconds; returns the list of those that were measured."""

    def costs(of: Costs) -> list[Setting]:
        seen: list[Setting] = []

        def measure(_: Bench, setting: Setting) -> Outcome:
            seen.append(setting)
            found = of(setting)
            return found if isinstance(found, tuple) else (WELL, timing(found))

        monkeypatch.setattr(Bench, "measure", measure)
        return seen

    return costs


def kept(machine: Machine, folder: Path) -> Path:
    return folder / "config" / "plough" / "tuned" / file_name(machine, 2)


def by_table(setting: Setting) -> float:
    buckets = {None: 0.0, 5: 9.0, 10: 2.0, 50: -20.0, ONE_BUCKET: 1.0}
    return 400.0 + {24: 30, 23: 0, 22: -10}[setting.threads] - setting.workers + buckets[setting.bucket_mb]


def failed(returncode: int, *stderr: str) -> Outcome:
    failure = RankRecord(rank=1, host="here", pid=8, relay_pid=9, returncode=returncode, stderr=stderr)
    return replace(WELL, code=1, failure=failure), None


def settled(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "HERE")
    return re.sub(r"about \d+ (s|min( \d+ s)?) left", "about N s left", text)


@pytest.mark.parametrize("words", [(), ("--ranks", "1"), ("--threads", "20", "--rounds", "3")])
def test_dry_run(
    words: tuple[str, ...], plough: Plough, here: Machine, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = plough(*TUNE, "--dry-run", *words)
    assert (said.code, said.err) == (0, "")
    assert settled(said.out, tmp_path) == snapshot
    assert not (tmp_path / "config").exists()


def test_dry_run_as_json(plough: Plough, here: Machine) -> None:
    found = json.loads(plough(*TUNE, "--dry-run", "--json").out)
    assert found["settings"][0] == {"threads": 23, "workers": 1, "reserve_cores": None, "bucket_mb": None}
    assert len(found["settings"]) == 9
    assert "plough.tune.ranks" in found["start"]["argv"]


def test_a_better_setting(
    plough: Plough,
    here: Machine,
    tmp_path: Path,
    costs: Callable[[Costs], list[Setting]],
    snapshot: SnapshotAssertion,
) -> None:
    seen = costs(by_table)
    said = plough(*TUNE, "--seq", "128", "--rounds", "3")
    assert said.code == 0
    assert settled(f"{said.err}--\n{said.out}", tmp_path) == snapshot
    best = Setting(threads=22, workers=4, reserve_cores=2, bucket_mb=50)
    assert len(seen) == 9 + 4 + 6
    assert set(seen[-6:]) == {seen[0], best}
    found = load(kept(here, tmp_path))
    assert (found.chosen, found.best, found.default) == (best, best, seen[0])
    assert (found.ranks, found.host, found.workload.seq) == (2, "here", 128)
    assert sum(1 for _ in (tmp_path / "config").rglob("*.json")) == 1


def test_json(plough: Plough, here: Machine, tmp_path: Path, costs: Callable[[Costs], list[Setting]]) -> None:
    costs(by_table)
    said = plough(*TUNE, "--json")
    assert msgspec.json.decode(said.out, type=Record) == load(kept(here, tmp_path))


def test_noise_keeps_the_default(
    plough: Plough,
    here: Machine,
    tmp_path: Path,
    costs: Callable[[Costs], list[Setting]],
    snapshot: SnapshotAssertion,
) -> None:
    times = iter([100.0, 90.0, *[110.0] * 11, *(100.0, 90.0, 104.0, 100.0, 98.0, 102.0)])
    costs(lambda _: next(times))
    said = plough(*TUNE, "--rounds", "3")
    assert said.code == 0
    assert said.out == snapshot
    assert "stays with its defaults" in said.err
    found = load(kept(here, tmp_path))
    assert found.chosen == found.default != found.best


def test_nothing_better(
    plough: Plough, here: Machine, costs: Callable[[Costs], list[Setting]], tmp_path: Path
) -> None:
    seen = costs(lambda setting: 100.0 + (setting != Setting(threads=23, workers=1)))
    said = plough(*TUNE)
    assert said.out.endswith("Nothing was faster than the default, which stays.\n")
    assert len(seen) == 13
    # An earlier result must not stay in force.
    assert load(kept(here, tmp_path)).tuned.bucket_mb is None


def test_a_setting_that_fails_is_not_chosen(
    plough: Plough,
    here: Machine,
    costs: Callable[[Costs], list[Setting]],
    snapshot: SnapshotAssertion,
) -> None:
    costs(lambda one: failed(-11, "boom") if one.threads == 22 else by_table(one))
    said = plough(*TUNE, "--rounds", "3")
    assert said.code == 0
    assert said.out == snapshot
    assert "failed: rank 1 on here was killed by SIGSEGV; the job was ended" in said.err


@pytest.mark.parametrize("code", [-9, 3])
def test_a_default_that_fails_is_an_error(
    code: int,
    plough: Plough,
    here: Machine,
    tmp_path: Path,
    costs: Callable[[Costs], list[Setting]],
    snapshot: SnapshotAssertion,
) -> None:
    costs(lambda _: failed(code, "last words"))
    said = plough(*TUNE)
    assert (said.code, said.out) == (1, "")
    assert said.err == snapshot
    assert not kept(here, tmp_path).exists()


def test_a_best_setting_that_fails_in_the_end(
    plough: Plough, here: Machine, costs: Callable[[Costs], list[Setting]]
) -> None:
    seen: list[Setting] = []

    def cost(setting: Setting) -> float | Outcome:
        seen.append(setting)
        return failed(-7) if seen.count(setting) > 1 and setting != seen[0] else by_table(setting)

    costs(cost)
    said = plough(*TUNE)
    assert said.out.endswith("failed when it met the default again, which stays.\n")


@pytest.mark.parametrize("after", [1, 3, 15])
def test_ctrl_c_leaves_nothing(
    after: int, plough: Plough, here: Machine, tmp_path: Path, costs: Callable[[Costs], list[Setting]]
) -> None:
    seen: list[Setting] = []

    def cost(setting: Setting) -> float | Outcome:
        seen.append(setting)
        interrupted = replace(WELL, code=130, interrupted=True)
        return (interrupted, None) if len(seen) == after else by_table(setting)

    costs(cost)
    said = plough(*TUNE)
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith("plough: interrupted; every rank has been ended\n")
    assert not (tmp_path / "config").exists()


def test_output(
    plough: Plough, here: Machine, tmp_path: Path, costs: Callable[[Costs], list[Setting]]
) -> None:
    seen = costs(by_table)
    said = plough(*TUNE, "--output", "mine.json")
    assert said.err.endswith("plough: kept in mine.json\n")
    assert load(Path("mine.json")).chosen.bucket_mb == 50
    assert not (tmp_path / "config").exists()
    seen.clear()
    again = plough(*TUNE, "--output", "mine.json")
    assert (again.code, again.out, seen) == (2, "", [])
    assert again.err == "error: --output mine.json: is there already\n\nhint: --force writes over it\n"
    assert plough(*TUNE, "--output", "mine.json", "--force").code == 0


def test_a_result_that_cannot_be_kept_is_shown(
    plough: Plough, here: Machine, tmp_path: Path, costs: Callable[[Costs], list[Setting]]
) -> None:
    def cost(setting: Setting) -> float:
        (tmp_path / "config").write_text("in the way")
        return by_table(setting)

    costs(cost)
    said = plough(*TUNE, "--rounds", "3")
    assert said.code == 2
    assert "<- chosen" in said.out
    assert "error: cannot make the folder" in said.err


WRONG = {
    "no model": ["tune"],
    "no folder": ["tune", "--model", "./nowhere"],
    "few rounds": [*TUNE, "--rounds", "2"],
    "precision": [*TUNE, "--precision", "fp16"],
    "mpirun alone": [*TUNE, "--mpirun", "mpirun"],
    "too many ranks": [*TUNE, "--ranks", "99"],
    "nothing to tune": [*TUNE, "--ranks", "1", "--threads", "24"],
    "no folder for output": [*TUNE, "--output", "no/where.json"],
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(case: str, plough: Plough, here: Machine, snapshot: SnapshotAssertion) -> None:
    said = plough(*WRONG[case])
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot


class TestWhoReadsIt:
    @pytest.fixture(autouse=True)
    def tuned(self, here: Machine, tmp_path: Path) -> Path:
        path = kept(here, tmp_path)
        save(record(here), path)
        return path

    def test_plan(self, plough: Plough, snapshot: SnapshotAssertion) -> None:
        said = plough("plan")
        assert (said.code, said.err) == (0, "")
        assert said.out == snapshot
        assert "tuned" not in plough("plan", "--no-tuned").out
        assert "tuned" not in plough("plan", "--ranks", "4").out

    def test_a_plan_for_another_machine(self, plough: Plough) -> None:
        assert "tuned" not in plough("plan", "--machine", str(expected_file("xeon-8x28"))).out

    def test_run(self, plough: Plough) -> None:
        said = plough("run", "--dry-run", "train.py")
        assert said.err == (
            "plough: threads 22, workers 2, one bucket: tuned on 2026-12-01 with "
            "google-bert/bert-large-uncased; --no-tuned to ignore\n"
        )
        assert plough("run", "--dry-run", "--no-tuned", "train.py").err == ""
        found = json.loads(plough("train", "--dry-run", "--json", "--threads", "20", "qa").out)
        rank = found["plan"]["ranks"][0]
        assert {one["name"]: one["value"] for one in rank["settings"]}["CCL_WORKER_COUNT"] == "2"
        assert rank["threads"] == 20

    def test_the_users_variables_win(self, plough: Plough, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(Env.OMP_NUM_THREADS, "16")
        monkeypatch.setenv(Env.PLOUGH_BUCKET_MB, "7")
        said = plough("run", "--dry-run", "train.py")
        assert said.err.startswith("plough: workers 2: tuned on")

    def test_a_default_that_was_best_is_not_worth_a_word(
        self, plough: Plough, here: Machine, tuned: Path
    ) -> None:
        found = record(here)
        save(replace(found, chosen=found.default), tuned)
        assert plough("run", "--dry-run", "train.py").err == ""
        assert "all as by default: tuned on 2026-12-01" in plough("plan").out

    def test_a_garbled_file_is_named_and_passed_over(self, plough: Plough, tuned: Path) -> None:
        tuned.write_text('{"format": 1')
        said = plough("plan")
        assert said.code == 0
        assert "tuned" not in said.out
        assert said.err == (
            f"plough: {tuned} is not what `plough tune` wrote: Input data was truncated; ignored. "
            "`plough tune` measures anew\n"
        )

    def test_a_file_that_does_not_fit(self, plough: Plough, here: Machine, tuned: Path) -> None:
        found = record(here)
        save(replace(found, chosen=replace(found.chosen, reserve_cores=24)), tuned)
        said = plough("plan")
        assert (said.code, "tuned" in said.out) == (0, False)
        assert f"warning: {tuned} does not fit here: " in said.err
