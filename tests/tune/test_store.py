"""Records as files: written whole, found by what is in them, passed over when they cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from plough.contract import Env
from plough.errors import PloughError
from plough.plan import Tuned
from plough.report import ONE_BUCKET
from plough.topology.machine import Machine
from plough.tune.store import FORMAT, file_name, find, load, machine_key, save, tuned_folder
from tests.machines.trees import NAMES, described
from tests.tune.made_up import BEST, DEFAULT, record


@pytest.fixture
def machine() -> Machine:
    return described("xeon-2x24")


def test_round_trip(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / file_name(machine, 2)
    save(record(machine), path)
    assert load(path) == record(machine)
    assert os.listdir(path.parent) == [path.name]
    found = find(path.parent, machine, 2)
    assert (found.path, found.notes) == (path, ())
    assert found.tuned == Tuned(
        why="tuned on 2026-12-01 with google-bert/bert-large-uncased",
        reserve_cores=2,
        ccl_worker_count=2,
        bucket_mb=ONE_BUCKET,
    )


def test_a_default_that_stays_changes_nothing(machine: Machine) -> None:
    tuned = record(machine, chosen=DEFAULT).tuned
    assert tuned == Tuned(why=tuned.why)


def test_the_newest_that_fits_is_found(machine: Machine, tmp_path: Path) -> None:
    other = described("xeon-8x28")
    dates = {"old": "2026-01-01T00:00:00+00:00", "new": "2026-11-30T00:00:00+00:00"}
    for name, date in dates.items():
        save(record(machine, date=date), tmp_path / f"{name}.json")
    late = "2027-01-01T00:00:00+00:00"
    save(record(machine, date=late, ranks=4), tmp_path / "four-ranks.json")
    save(record(other, date=late), tmp_path / "another-machine.json")
    (tmp_path / "README").write_text("no record")
    found = find(tmp_path, machine, 2)
    assert (found.path, found.notes) == (tmp_path / "new.json", ())


def test_nothing_was_ever_tuned(machine: Machine, tmp_path: Path) -> None:
    for folder in (None, tmp_path, tmp_path / "none"):
        found = find(folder, machine, 2)
        assert (found.path, found.tuned, found.notes) == (None, None, ())


def test_a_machine_that_has_changed(machine: Machine, tmp_path: Path) -> None:
    before = replace(machine, cores=machine.cores[:24])
    save(record(before), tmp_path / "before.json")
    save(record(before, host="elsewhere"), tmp_path / "elsewhere.json")
    found = find(tmp_path, machine, 2)
    assert found.tuned is None
    (note,) = found.notes
    assert note.startswith(f"{tmp_path / 'before.json'} was measured when {machine.hostname} had other cores")
    assert "`plough tune` measures anew" in note


GARBLED = {
    "empty": ("", "not what `plough tune` wrote: Input data was truncated"),
    "half": ('{"format": 1, "plough": "0.1', "not what `plough tune` wrote"),
    "not text": (b"\xff\xfe", "not what `plough tune` wrote"),
    "not a record": ("[]", "not what `plough tune` wrote: Expected `object`, got `array`"),
    "without a format": ("{}", "missing required field `format`"),
    "a later format": (f'{{"format": {FORMAT + 1}, "more": 1}}', "written by another version of Plough"),
    "a field too many": (f'{{"format": {FORMAT}, "more": 1}}', "unknown field `more`"),
}


@pytest.mark.parametrize("case", GARBLED)
def test_a_file_that_cannot_be_used_is_named(case: str, machine: Machine, tmp_path: Path) -> None:
    content, words = GARBLED[case]
    path = tmp_path / "garbled.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PloughError) as caught:
        load(path)
    assert str(path) in caught.value.cause
    assert words in caught.value.cause
    save(record(machine), tmp_path / "good.json")
    found = find(tmp_path, machine, 2)
    assert found.path == tmp_path / "good.json"
    (note,) = found.notes
    assert note == f"{caught.value.cause}; ignored. `plough tune` measures anew"


@pytest.mark.parametrize(
    "change",
    [{"workers": 0}, {"threads": 0}, {"reserve_cores": -1}, {"bucket_mb": 0}, {"bucket_mb": 1 << 40}],
)
def test_values_that_cannot_be(change: dict[str, int], machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "edited.json"
    save(record(machine, chosen=replace(BEST, **change)), path)
    with pytest.raises(PloughError, match=r"edited\.json is not what `plough tune` wrote.*\$\.chosen"):
        load(path)


def test_a_file_that_cannot_be_read_or_written(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(PloughError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(PloughError, match="cannot make the folder"):
        save(record(machine), tmp_path / "file" / "a.json")


def test_keys_tell_machines_apart() -> None:
    assert len({machine_key(described(name)) for name in NAMES}) == len(NAMES)
    machine = described("xeon-2x24")
    same = replace(machine, hostname="other", memory_bytes=1, software=described("vm-2-core").software)
    assert machine_key(same) == machine_key(machine)
    fewer = replace(machine, limits=replace(machine.limits, cpus=(0, 1)))
    quota = replace(machine, limits=replace(machine.limits, quota_cpus=4.0))
    assert len({machine_key(one) for one in (machine, fewer, quota)}) == 3


def test_file_names(machine: Machine) -> None:
    name = file_name(machine, 2)
    assert name.endswith(f"-{machine_key(machine)}-2-ranks.json")
    odd = replace(machine, model_name="/../ §")
    assert file_name(odd, 1) == f"cpu-{machine_key(odd)}-1-rank.json"


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned_folder({Env.XDG_CONFIG_HOME: "/etc/me"}) == Path("/etc/me/plough/tuned")
    monkeypatch.setenv("HOME", "/home/me")
    for environment in ({}, {Env.XDG_CONFIG_HOME: ""}, {Env.XDG_CONFIG_HOME: "relative"}):
        assert tuned_folder(environment) == Path("/home/me/.config/plough/tuned")
