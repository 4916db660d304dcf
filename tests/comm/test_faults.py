"""What the ranks of a `ccl` group do when one of them dies, stops, leaves, or calls something else.

200 cases at random run with `make test-faults`, a few of their kind and all that need no chance always. A
case is known by its seed: run number 17 again with `pytest -m faults -k case_17`, which prints it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "ranks"))
from faults import (
    AT_ONCE_S,
    DID_NOT_RAISE,
    RAISED,
    SLACK_S,
    Case,
    Result,
    Stage,
    left_behind,
    problems,
    random_case,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: g++ is not here")

AT_ONCE = 2  # cases
Outcomes = dict[Case, Future[Result]]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Outcomes]:
    """All cases of the tests that were asked for: they run beside each other."""
    here = [item for item in request.session.items if item.path == request.path]
    values = [value for item in here if hasattr(item, "callspec") for value in item.callspec.params.values()]
    wanted = [value for value in values if isinstance(value, Case)]
    pool = ThreadPoolExecutor(AT_ONCE)
    found = {case: pool.submit(stage.run, case) for case in wanted}
    yield found
    pool.shutdown(cancel_futures=True)
    report_times(request, found)


def report_times(request: pytest.FixtureRequest, outcomes: Outcomes) -> None:
    """How long it took to raise, for those who want to know; what must hold is in `problems`."""
    times: dict[str, list[float]] = {}
    for case, future in outcomes.items():
        if not case.signal or not future.done() or future.cancelled() or future.exception():
            continue
        result = future.result()
        where = "one host" if case.hosts == 1 else "two hosts"
        kind = f"{case.signal} on {where}, timeout {case.timeout:g} s"
        times.setdefault(kind, []).extend(filter(None, map(result.seconds, result.others)))
    plugins = request.config.pluginmanager
    terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal.write_line("")
        for kind, seconds in sorted(times.items()):
            if len(seconds) < 2:
                continue
            tenths = statistics.quantiles(seconds, n=10)
            terminal.write_line(
                f"{kind}: {len(seconds)} ranks raised after {min(seconds):.3f} to {max(seconds):.3f} s, "
                f"half within {tenths[4]:.3f} s, nine tenths within {tenths[8]:.3f} s"
            )


# ---- a rank is killed or stopped ----

MESSAGES = ("ring", "chain")


def killed(size: int, victim: int, seed: int, **more: Any) -> Case:
    return Case(**{"signal": "KILL", "size": size, "victim": victim, "seed": seed, "timeout": 5.0, **more})


def stopped(size: int, victim: int, seed: int, **more: Any) -> Case:
    return Case(**{"signal": "STOP", "size": size, "victim": victim, "seed": seed, "timeout": 2.0, **more})


REPRESENTATIVE = {
    "killed follower": killed(3, 2, 1001, delay=0.05),
    "killed leader, no way between buffers": killed(3, 0, 1002, delay=0.1, direct=False),
    "killed rank that keeps the store": killed(2, 0, 1003, delay=0.03, store="rank 0"),
    "killed one of four with two workers": killed(4, 1, 1004, delay=0.08, workers=2),
    "killed amid messages": killed(3, 1, 1005, delay=0.06, kinds=MESSAGES),
    "stopped follower": stopped(2, 1, 1006, delay=0.05),
    "stopped leader of four": stopped(4, 0, 1007, delay=0.1),
    "stopped, no way between buffers": stopped(3, 1, 1008, delay=0.07, direct=False),
    "stopped amid messages": stopped(4, 2, 1009, delay=0.05, kinds=MESSAGES),
    "killed follower of the second host": killed(4, 3, 1010, delay=0.1, hosts=2, timeout=2.0),
    "killed leader of the second host": killed(3, 1, 1011, delay=0.08, hosts=2, timeout=2.0),
    "stopped follower of the first host": stopped(4, 2, 1012, delay=0.1, hosts=2),
    "stopped leader that keeps the store": stopped(3, 0, 1013, delay=0.1, hosts=2, store="rank 0"),
}


def check(case: Case, outcomes: Outcomes) -> Result:
    """The result, once it is there and nothing is wrong with it but for what a test knows itself."""
    result = outcomes[case].result()
    print(result)
    return result


@pytest.mark.parametrize("case", REPRESENTATIVE.values(), ids=REPRESENTATIVE)
def test_survivors_raise_in_time_and_name_the_culprit(case: Case, outcomes: Outcomes) -> None:
    assert not problems(check(case, outcomes))


@pytest.mark.faults
@pytest.mark.parametrize("case", [pytest.param(random_case(seed), id=f"case_{seed}") for seed in range(200)])
def test_at_random(case: Case, outcomes: Outcomes) -> None:
    assert not problems(check(case, outcomes))


# ---- a rank leaves, or never comes ----


def assert_all_others_say(result: Result, *texts: str, within: float) -> None:
    """Since the victim said that it was ready for its fault."""
    ready = result.event(result.case.victim, "ready")
    assert ready is not None
    for rank in result.others:
        raised = result.event(rank, "raised")
        assert raised is not None, f"rank {rank} did not raise"
        assert raised["type"] == "DistBackendError"
        assert raised["at"] - ready["time"] < within
        for text in texts:
            assert text in raised["text"]
        assert result.event(rank, "formed again") is not None
        assert result.code(rank) == RAISED
    assert not left_behind(result)
    assert not result.found["hung"]


LEAVING = {
    "exits": Case(plot="exits", size=3, victim=1, timeout=10),
    "leader exits": Case(plot="exits", size=2, victim=0, timeout=10),
    "raises and destroys the group": Case(plot="leaves", size=3, victim=2, timeout=10),
}


@pytest.mark.parametrize("case", LEAVING.values(), ids=LEAVING)
def test_a_rank_that_leaves_is_missed_at_once(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    # Python needs a while to end.
    texts = (result.name(case.victim), "; all_reduce #", "cannot be finished")
    assert_all_others_say(result, *texts, within=AT_ONCE_S + 2)
    if case.plot == "leaves":
        assert result.event(case.victim, "raised")["type"] == "ValueError"  # type: ignore[index]
        assert all("has left the group" in result.text(rank) for rank in result.others)
    else:
        assert result.code(case.victim) == 0


NOT_COMING = {
    "never comes": Case(plot="never comes", size=3, victim=1),
    "never comes to lead": Case(plot="never comes", size=2, victim=0),
    "never comes, two hosts": Case(plot="never comes", size=3, victim=2, hosts=2),
    "dies while it forms": Case(plot="dies while it forms", size=3, victim=2),
}


@pytest.mark.parametrize("case", NOT_COMING.values(), ids=NOT_COMING)
def test_a_group_that_cannot_be_formed_names_who_is_missing(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    name = result.name(case.victim) if "dies" in case.plot else f"ccl: rank {case.victim} of {case.size} did"
    assert_all_others_say(result, name, "come to form the group", within=case.timeout + SLACK_S)


STUCK = {
    "one host": Case(plot="stuck", size=3, victim=1),
    "two hosts": Case(plot="stuck", size=4, victim=3, hosts=2),
    "messages, one host": Case(plot="stuck before chain", size=4, victim=0),
    "messages, two hosts": Case(plot="stuck before chain", size=4, victim=0, hosts=2),
}


@pytest.mark.parametrize("case", STUCK.values(), ids=STUCK)
def test_a_rank_that_is_busy_elsewhere_is_named(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    assert_all_others_say(result, result.name(case.victim), within=case.timeout + SLACK_S)
    assert all("stopped" not in result.text(rank) for rank in result.others)
    assert "this group failed before" in result.text(case.victim)


# ---- ranks that do not agree ----

SIZES = {"small": 10, "large": 100_000}
WAYS = {"buffer to buffer": True, "slots": False}
DIFFERENT = {
    "collective": ("all_reduce #4 (sum, {} bytes of float32)", "barrier #4"),
    "dtype": ("all_reduce #4 (sum, {} bytes of float32)", "all_reduce #4 (sum, {} bytes of int32)"),
    "size": ("all_reduce #4 (sum, {} bytes of float32)", "all_reduce #4 (sum, {more} bytes of float32)"),
    "reduction": ("all_reduce #4 (sum, {} bytes of float32)", "all_reduce #4 (max, {} bytes of float32)"),
    "root": ("broadcast #4 ({} bytes of float32, root 0)", "broadcast #4 ({} bytes of float32, root 1)"),
}


OTHER_CALLS = {
    f"{differs}, {size}, {way}": Case(
        plot="other call", size=3, victim=1, timeout=10, differs=differs, count=count, direct=direct
    )
    for differs in DIFFERENT
    for size, count in SIZES.items()
    for way, direct in WAYS.items()
    if direct or size == "large"
}


@pytest.mark.parametrize("case", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_different_calls_are_both_described(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    ours, theirs = (text.format(4 * case.count, more=4 * case.count + 4) for text in DIFFERENT[case.differs])
    times = []
    for rank in range(case.size):
        assert "ranks called different things" in result.text(rank)
        assert f"on {result.host}): {ours}" in result.text(rank)
        assert f"{result.name(case.victim)}{result.host}): {theirs}" in result.text(rank)
        times.append(result.event(rank, "raised")["at"])  # type: ignore[index]
        assert result.code(rank) == RAISED
    assert max(times) - min(times) < AT_ONCE_S
    assert not left_behind(result)


OTHER_SIZES = {
    f"{size}, {way}": Case(
        plot="other size of message", size=3, victim=0, timeout=10, count=count, direct=direct
    )
    for size, count in SIZES.items()
    for way, direct in WAYS.items()
}


@pytest.mark.parametrize("case", OTHER_SIZES.values(), ids=OTHER_SIZES)
def test_sender_and_receiver_learn_that_sizes_differ(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    for rank in range(case.size):
        assert "sizes differ between send and recv" in result.text(rank)
        assert f"{result.name(0)}{result.host}) sends {4 * case.count} bytes" in result.text(rank)
        assert f"{result.name(1)}{result.host}) receives {4 * case.count + 4}" in result.text(rank)


# ---- the memory ----


LARGE = {way: Case(plot="large", direct=direct, timeout=60, again=False) for way, direct in WAYS.items()}


@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_a_small_dev_shm_is_no_limit(case: Case, outcomes: Outcomes) -> None:
    result = check(case, outcomes)
    assert [result.code(rank) for rank in range(case.size)] == [DID_NOT_RAISE] * case.size
    assert not left_behind(result)
    if result.event(0, "shm")["size"] > 64 << 20:  # type: ignore[index]
        pytest.skip("needs root, to mount a small /dev/shm: it worked with a large one")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("case", [pytest.param(Case(plot="other user", size=1, again=False), id="nobody")])
def test_the_memory_is_closed_to_other_users(case: Case, outcomes: Outcomes) -> None:
    tried = check(case, outcomes).event(0, "tried")
    assert tried is not None
    assert "Permission denied" in tried["text"]


# ---- afterwards ----


def test_nothing_is_left_of_all_this(outcomes: Outcomes, stage: Stage) -> None:
    """The last test: whoever started the ranks has no more open files, threads or children than before."""
    for future in outcomes.values():
        future.exception()
    process = Path("/proc") / str(stage.zygote["pid"])
    assert stage.fds == stage.zygote["fds"]
    assert len(list((process / "task").iterdir())) == stage.zygote["threads"] == 1
    children = (process / "task" / process.name / "children").read_text()
    assert children == ""
