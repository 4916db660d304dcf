"""Which variables a rank gets: its threads, its libraries, and what the user had set already."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from plough.contract import Env
from plough.errors import PlanError
from plough.plan.binding import share_host
from plough.plan.environment import GLIBC_MALLOC, WATCHED, RankEnvironment, rank_environment
from plough.plan.plan import PlanRequest
from plough.topology.machine import Software
from tests.machines.trees import described

TC = "/lib/libtcmalloc_minimal.so.4"
JE = "/lib/libjemalloc.so.2"
IOMP = "/venv/lib/libiomp5.so"


def environment(
    name: str = "xeon-2x24",
    *,
    user: dict[str, str] | None = None,
    software: dict[str, str] | None = None,
    rank: int = 0,
    hosts: int = 1,
    **request: Any,
) -> RankEnvironment:
    machine = replace(described(name), software=Software(**(software or {})))
    asked = PlanRequest(user_environment=user or {}, **request)
    return rank_environment(machine, asked, share_host(machine, asked).shares, rank, hosts=hosts)


def values(found: RankEnvironment) -> dict[str, str]:
    names = [setting.name for setting in found.settings]
    assert len(names) == len(set(names)), "a variable is set twice"
    return {setting.name: setting.value for setting in found.settings}


def reason(found: RankEnvironment, name: str) -> str:
    return next(setting.why for setting in found.settings if setting.name == name)


def places(first: int, last: int) -> str:
    return ",".join(f"{{{cpu}}}" for cpu in range(first, last + 1))


def test_a_rank_of_two_on_two_sockets() -> None:
    found = environment(rank=1)
    assert values(found) == {
        "OMP_NUM_THREADS": "23",
        "OMP_PLACES": places(25, 47),
        "OMP_PROC_BIND": "close",
        "MALLOC_MMAP_THRESHOLD_": "1073741824",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        "MALLOC_TOP_PAD_": "67108864",
        "CCL_WORKER_COUNT": "1",
        "CCL_WORKER_AFFINITY": "0,24",
        "I_MPI_PIN": "0",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    assert all(setting.why for setting in found.settings)
    assert (found.threads, found.preloads, found.warnings) == (23, (), ())


def test_one_rank_alone_gets_nothing_of_communication() -> None:
    found = values(environment("vm-2-core"))
    assert set(found) == {"OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", *GLIBC_MALLOC}


def test_a_rank_that_is_not_bound_has_threads_that_are_not() -> None:
    found = values(environment("pod-8-of-384-quota", ranks=2))
    assert found["OMP_PROC_BIND"] == "false"
    assert "OMP_PLACES" not in found
    assert "CCL_WORKER_AFFINITY" not in found
    assert found["CCL_WORKER_COUNT"] == "1"


# software that is there, --allocator, the user's LD_PRELOAD -> preloads, and some variables (None: not set)
ALLOCATORS: list[tuple[dict[str, str], str, str, tuple[str, ...], dict[str, str | None]]] = [
    ({}, "auto", "", (), {**GLIBC_MALLOC, "LD_PRELOAD": None}),
    ({"tcmalloc": TC, "jemalloc": JE}, "auto", "", (TC,), {"LD_PRELOAD": TC, Env.MALLOC_TOP_PAD: None}),
    ({"tcmalloc": TC}, "auto", "", (TC,), {Env.TCMALLOC_LARGE_ALLOC: str(1 << 40)}),
    ({"jemalloc": JE}, "auto", "", (JE,), {"LD_PRELOAD": JE, Env.TCMALLOC_LARGE_ALLOC: None}),
    ({"tcmalloc": TC, "jemalloc": JE}, "jemalloc", "", (JE,), {"LD_PRELOAD": JE}),
    ({"tcmalloc": TC, "jemalloc": JE}, "glibc", "", (), {**GLIBC_MALLOC, "LD_PRELOAD": None}),
    ({"tcmalloc": TC}, "none", "", (), {Env.MALLOC_TOP_PAD: None, "LD_PRELOAD": None}),
    # The user's own allocator is the allocator.
    ({"tcmalloc": TC}, "auto", "/opt/libjemalloc.so.2", (), {"LD_PRELOAD": "/opt/libjemalloc.so.2"}),
    ({"tcmalloc": TC}, "auto", "/opt/libmimalloc.so", (), {Env.MALLOC_TOP_PAD: None}),
    ({"tcmalloc": TC}, "tcmalloc", "/opt/libtcmalloc.so.4", (), {"LD_PRELOAD": "/opt/libtcmalloc.so.4"}),
    # A folder of that name is no allocator.
    ({"tcmalloc": TC}, "auto", "/opt/jemalloc/libx.so", (TC,), {"LD_PRELOAD": f"/opt/jemalloc/libx.so:{TC}"}),
    # What else they preload comes first, whatever separates it.
    ({"tcmalloc": TC}, "auto", "/a.so /b.so:/c.so", (TC,), {"LD_PRELOAD": f"/a.so:/b.so:/c.so:{TC}"}),
    (
        {"tcmalloc": TC, "intel_openmp": IOMP},
        "auto",
        "/a.so",
        (TC, IOMP),
        {"LD_PRELOAD": f"/a.so:{TC}:{IOMP}"},
    ),
]


@pytest.mark.parametrize(("software", "wanted", "own", "preloads", "expected"), ALLOCATORS)
def test_allocator(
    software: dict[str, str],
    wanted: str,
    own: str,
    preloads: tuple[str, ...],
    expected: dict[str, str | None],
) -> None:
    user = {"LD_PRELOAD": own} if own else {}
    found = environment(software=software, allocator=wanted, user=user)
    assert found.preloads == preloads
    assert {name: values(found).get(name) for name in expected} == expected


def test_jemalloc_keeps_freed_pages() -> None:
    found = values(environment(software={"jemalloc": JE}))
    assert "dirty_decay_ms:-1" in found["MALLOC_CONF"]
    theirs = values(environment(software={"jemalloc": JE}, user={"MALLOC_CONF": "narenas:1"}))
    assert theirs["MALLOC_CONF"] == "narenas:1"


def test_intel_openmp() -> None:
    found = environment(software={"intel_openmp": IOMP})
    proclist = ",".join(map(str, range(1, 24)))
    assert found.preloads == (IOMP,)
    assert values(found)["KMP_AFFINITY"] == f"granularity=fine,explicit,proclist=[{proclist}]"
    assert values(found)["KMP_BLOCKTIME"] == "1"
    assert {"OMP_PLACES", "OMP_PROC_BIND"}.isdisjoint(values(found))
    assert reason(found, "LD_PRELOAD") == "Intel OpenMP found here"
    gnu = environment(software={"intel_openmp": IOMP}, openmp="gnu")
    assert gnu.preloads == ()
    assert values(gnu)["OMP_PROC_BIND"] == "close"
    assert "KMP_BLOCKTIME" not in values(gnu)


def test_the_users_own_intel_openmp_is_treated_as_such() -> None:
    found = environment(software={"intel_openmp": IOMP}, user={"LD_PRELOAD": "/opt/libiomp5.so"})
    assert found.preloads == ()
    assert values(found)["LD_PRELOAD"] == "/opt/libiomp5.so"
    assert reason(found, "LD_PRELOAD") == "set by you; kept"
    assert "KMP_AFFINITY" in values(found)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"allocator": "tcmalloc"},
        "--allocator tcmalloc: libtcmalloc is not on this machine",
        "libtcmalloc-minimal4",
    ),
    ({"allocator": "jemalloc"}, "--allocator jemalloc: libjemalloc is not on this machine", "libjemalloc2"),
    ({"allocator": "mimalloc"}, "--allocator mimalloc: unknown", "one of auto, tcmalloc"),
    ({"openmp": "intel"}, "--openmp intel: libiomp5.so is not in this environment", "plough[openmp]"),
    ({"openmp": "llvm"}, "--openmp llvm: unknown", "one of auto, intel, gnu"),
    (
        {"allocator": "glibc", "user": {"LD_PRELOAD": TC}},
        f"--allocator glibc and LD_PRELOAD={TC} contradict each other",
        "take it out of LD_PRELOAD",
    ),
    (
        {"allocator": "tcmalloc", "software": {"tcmalloc": TC}, "user": {"LD_PRELOAD": JE}},
        f"--allocator tcmalloc and LD_PRELOAD={JE} contradict each other",
        "leave --allocator out",
    ),
    (
        {"openmp": "gnu", "user": {"LD_PRELOAD": IOMP}},
        f"--openmp gnu and LD_PRELOAD={IOMP} contradict each other",
        "leave --openmp out",
    ),
    (
        {"threads": 8, "user": {"OMP_NUM_THREADS": "4"}},
        "--threads 8 and OMP_NUM_THREADS=4 contradict each other",
        "unset OMP_NUM_THREADS",
    ),
    (
        {"user": {"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"}},
        "OMP_NUM_THREADS=8 and MKL_NUM_THREADS=1 contradict each other",
        "unset MKL_NUM_THREADS",
    ),
    (
        {"user": {"OMP_NUM_THREADS": "all"}},
        "OMP_NUM_THREADS='all' is not a positive whole number",
        "unset it",
    ),
    ({"user": {"OMP_NUM_THREADS": ""}}, "OMP_NUM_THREADS='' is not a positive whole number", "unset it"),
    ({"user": {"OMP_NUM_THREADS": "0"}}, "OMP_NUM_THREADS='0' is not a positive whole number", "unset it"),
    ({"user": {"MKL_NUM_THREADS": "-2"}}, "MKL_NUM_THREADS='-2' is not a positive whole number", "unset it"),
]


@pytest.mark.parametrize(("request_", "cause", "hint"), REFUSED)
def test_refused(request_: dict[str, Any], cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        environment(**request_)
    assert caught.value.cause == cause
    assert hint in str(caught.value.hint)


# the user's variables -> threads, warning
THREADS: list[tuple[dict[str, str], dict[str, Any], int, str | None]] = [
    ({"OMP_NUM_THREADS": "23"}, {}, 23, None),
    ({"OMP_NUM_THREADS": "12"}, {}, 12, None),
    ({"OMP_NUM_THREADS": "11"}, {}, 11, "leaves 12 of 23 cores per rank idle; 23 would be right here"),
    ({"OMP_NUM_THREADS": "1"}, {}, 1, "leaves 22 of 23 cores per rank idle"),
    (
        {"OMP_NUM_THREADS": "46"},
        {},
        46,
        "OMP_NUM_THREADS=46 on 23 cores per rank: threads take turns on a core",
    ),
    ({"OMP_NUM_THREADS": "4,2"}, {"threads": 4}, 4, None),
    ({"MKL_NUM_THREADS": "48"}, {}, 48, "MKL_NUM_THREADS=48 on 23 cores per rank"),
    ({"MKL_NUM_THREADS": "20", "OMP_NUM_THREADS": "20"}, {}, 20, None),
    ({"OMP_NUM_THREADS": "8"}, {"threads": 8}, 8, None),
]


@pytest.mark.parametrize(("user", "request_", "threads", "warning"), THREADS)
def test_the_users_number_of_threads_is_kept(
    user: dict[str, str], request_: dict[str, Any], threads: int, warning: str | None
) -> None:
    found = environment(user=user, **request_)
    assert found.threads == threads
    assert {name: values(found)[name] for name in user} == user
    assert values(found)["OMP_NUM_THREADS"].split(",")[0] == str(threads)
    assert [warning in text for text in found.warnings if warning] == ([True] if warning else [])
    assert bool(found.warnings) == (warning is not None)


def test_more_threads_than_cores_are_not_bound() -> None:
    found = values(environment(user={"OMP_NUM_THREADS": "46"}))
    assert found["OMP_PROC_BIND"] == "false"
    assert "OMP_PLACES" not in found


def test_mkl_alone_decides_openmp_too() -> None:
    found = environment(user={"MKL_NUM_THREADS": "20"})
    assert values(found)["OMP_NUM_THREADS"] == "20"
    assert reason(found, "OMP_NUM_THREADS") == "as MKL_NUM_THREADS, set by you"


@pytest.mark.parametrize(
    ("user", "software"),
    [
        ({"OMP_PROC_BIND": "spread"}, {}),
        ({"GOMP_CPU_AFFINITY": "0-3"}, {}),
        ({"KMP_AFFINITY": "compact"}, {"intel_openmp": IOMP}),
        ({"OMP_PLACES": "cores", "OMP_PROC_BIND": "true"}, {"intel_openmp": IOMP}),
    ],
)
def test_a_family_of_which_the_user_set_one_is_left_to_them(
    user: dict[str, str], software: dict[str, str]
) -> None:
    found = environment(user=user, software=software)
    family = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}
    assert {name: value for name, value in values(found).items() if name in family} == user
    assert {reason(found, name) for name in user} == {"set by you; kept"}


def test_the_users_glibc_settings_are_left_to_them() -> None:
    found = values(environment(user={Env.MALLOC_TOP_PAD: "1"}))
    assert {name: found.get(name) for name in GLIBC_MALLOC} == {
        Env.MALLOC_MMAP_THRESHOLD: None,
        Env.MALLOC_TRIM_THRESHOLD: None,
        Env.MALLOC_TOP_PAD: "1",
    }


@pytest.mark.parametrize("name", sorted(set(WATCHED) - {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD"}))
def test_whatever_else_the_user_set_is_never_changed(name: str) -> None:
    everything = {"tcmalloc": TC, "jemalloc": JE, "intel_openmp": IOMP}
    for software in ({}, everything, {"jemalloc": JE}):
        found = values(environment(user={name: "7"}, software=software))
        assert found.get(name, "7") == "7"


# --ccl-worker-count, the user's variables, --reserve-cores -> count, affinity
CCL: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "1", "0,24"),
    ({"ccl_worker_count": 2, "reserve_cores": 2}, "2", "0,1,24,25"),
    ({"ccl_worker_count": 2}, "2", "0,0,24,24"),
    ({"user": {"CCL_WORKER_COUNT": "3"}, "reserve_cores": 2}, "3", "0,1,0,24,25,24"),
    ({"user": {"CCL_WORKER_COUNT": "many"}}, "many", None),
    ({"user": {"CCL_WORKER_AFFINITY": "5,6"}}, "1", "5,6"),
    ({"ranks": 1, "other_ranks": 1}, "1", None),
    ({"ranks": 1, "other_ranks": 1, "user": {"CCL_WORKER_AFFINITY": "5,6"}}, "1", "5,6"),
]


@pytest.mark.parametrize(("request_", "count", "affinity"), CCL)
def test_ccl_workers(request_: dict[str, Any], count: str, affinity: str | None) -> None:
    found = values(environment(**request_))
    assert found["CCL_WORKER_COUNT"] == count
    assert found.get("CCL_WORKER_AFFINITY") == affinity


def test_where_ccl_workers_compete_it_says_so() -> None:
    assert reason(environment(), "CCL_WORKER_AFFINITY") == "cores that do not compute"
    small = environment("vm-2-core", ranks=2)
    assert values(small)["CCL_WORKER_AFFINITY"] == "0,1"
    assert reason(small, "CCL_WORKER_AFFINITY") == "a core that computes too"
    few = environment(threads=8, reserve_cores=0)
    assert values(few)["CCL_WORKER_AFFINITY"] == "23,47"
    assert reason(few, "CCL_WORKER_AFFINITY") == "cores that do not compute"


def test_several_hosts_are_told_nothing_that_only_holds_on_one() -> None:
    found = values(environment(hosts=2))
    assert {"MASTER_ADDR", "GLOO_SOCKET_IFNAME", "MASTER_PORT"}.isdisjoint(found)
    theirs = {"MASTER_ADDR": "node1", "MASTER_PORT": "29501", "GLOO_SOCKET_IFNAME": "eth0"}
    found = values(environment(hosts=2, user=theirs))
    assert {name: found[name] for name in theirs} == theirs


def test_a_rank_planned_alone_still_knows_it_has_peers() -> None:
    found = values(environment("vm-2-core", ranks=1, other_ranks=3))
    assert (found["MASTER_ADDR"], found["GLOO_SOCKET_IFNAME"], found["I_MPI_PIN"]) == ("127.0.0.1", "lo", "0")
