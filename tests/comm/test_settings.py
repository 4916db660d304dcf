from __future__ import annotations

import pytest

from plough.comm.settings import Settings, read_settings
from plough.contract import Env
from plough.errors import UsageError

GOOD = {
    "nothing set": ({}, Settings()),
    "transport": ({Env.PLOUGH_CCL_TRANSPORT: "oneccl"}, Settings(transport="oneccl")),
    "through shared memory": ({Env.PLOUGH_CCL_DIRECT: "0"}, Settings(direct=False)),
    "no spinning": ({Env.PLOUGH_CCL_SPIN_US: "0"}, Settings(spin_us=0.0)),
    "slots": ({Env.PLOUGH_CCL_SLOT_KIB: "8"}, Settings(slot_bytes=8192)),
    "workers unbound": ({Env.CCL_WORKER_COUNT: "3"}, Settings(workers=3)),
    "workers of the second rank": (
        {Env.CCL_WORKER_COUNT: "2", Env.CCL_WORKER_AFFINITY: "10,11,12,13", Env.LOCAL_RANK: "1"},
        Settings(workers=2, worker_cpus=(12, 13)),
    ),
    "a list for fewer ranks": (
        {Env.CCL_WORKER_COUNT: "2", Env.CCL_WORKER_AFFINITY: "10,11", Env.LOCAL_RANK: "1"},
        Settings(workers=2),
    ),
    "oneCCL's own word": ({Env.CCL_WORKER_AFFINITY: "auto"}, Settings()),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_set_is_read(case: str) -> None:
    env, wanted = GOOD[case]
    assert read_settings(env) == wanted


BAD = {
    "unknown transport": (Env.PLOUGH_CCL_TRANSPORT, "infiniband", "one of auto, shm, oneccl, gloo"),
    "neither": (Env.PLOUGH_CCL_DIRECT, "yes", "neither 0 nor 1"),
    "a word": (Env.PLOUGH_CCL_SPIN_US, "long", "not a number from 0"),
    "negative": (Env.PLOUGH_CCL_SPIN_US, "-1", "not a number from 0"),
    "not a number": (Env.PLOUGH_CCL_SLOT_KIB, "nan", "not a number from 4"),
    "no workers": (Env.CCL_WORKER_COUNT, "0", "not a number from 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_named(case: str) -> None:
    name, value, said = BAD[case]
    with pytest.raises(UsageError) as caught:
        read_settings({name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert said in caught.value.render()
