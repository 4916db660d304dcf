"""oneCCL's shim between real processes, plainly started and Intel MPI's, and what is said when it cannot be.

Run as a script this file is one of those processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from plough.comm.oneccl import (
    DType,
    NotUsable,
    OneCcl,
    OneCclShim,
    Op,
    Span,
    Transport,
    compile_command,
    environment_for,
    find_oneccl,
    key_parts,
    load_problem,
    require_oneccl,
    span_of,
    started_by_hydra,
)
from plough.errors import BuildError, LaunchError

HYDRA = Path(sys.executable).with_name("mpiexec.hydra")
PATIENCE_S = 60.0  # for what must not take long, on a machine that is busy otherwise
JOB_S = 150

# -- What the ranks do ---------------------------------------------------------------------------------------


class Rank:
    """One process of a scenario. What it returns is what the test sees of it."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self.folder = rank, size, folder
        self.shim = OneCclShim(folder / "shim.so")
        self.meetings = 0

    def wait_for(self, name: str) -> Path:
        path, until = self.folder / name, time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < until, f"{name} did not come"
            time.sleep(0.01)
        return path

    def tell(self, name: str, content: bytes = b"") -> None:
        part = self.folder / f"{name}.{self.rank}.part"
        part.write_bytes(content)
        part.rename(self.folder / name)

    def open(self, members: Sequence[int] | None = None, timeout_s: float = PATIENCE_S) -> int:
        """A communicator of some ranks, in their order; the first makes the address."""
        members = range(self.size) if members is None else members
        name = f"address-{'-'.join(map(str, members))}-{self.meetings}"
        self.meetings += 1
        if self.rank == members[0]:
            self.tell(name, self.shim.address())
        address = self.wait_for(name).read_bytes()
        return self.shim.open(
            address, size=len(members), rank=list(members).index(self.rank), timeout_s=timeout_s
        )

    def exchange(self, handle: int, length: Callable[[int, int], int], mark: int = 0) -> bool:
        """Everybody sends b a text that tells its sender and receiver, `length(a, b)` long."""

        def text(a: int, b: int) -> bytearray:
            n = length(a, b)
            return bytearray((f"{a}>{b}:{mark};".encode() * (n // 4 + 1))[:n])

        sent = [text(self.rank, other) for other in range(self.size)]
        came = [bytearray(length(other, self.rank)) for other in range(self.size)]
        mine = bytes(came[self.rank])
        self.shim.exchange(
            handle, [span_of(b) for b in sent], [span_of(b) for b in came], timeout_s=PATIENCE_S
        )
        wanted = [mine if a == self.rank else text(a, self.rank) for a in range(self.size)]
        return came == wanted

    def exchanges(self) -> list[bool]:
        handle = self.open()
        lengths: list[Callable[[int, int], int]] = [
            lambda a, b: 0,
            lambda a, b: 1,
            lambda a, b: 1000 * a + b,
            lambda a, b: 0 if a < b else 70_000,
            # oneCCL changes its ways at a mebibyte.
            lambda a, b: (1 << 20) - 1 + a * 2 - b,
            lambda a, b: 3_000_000 * a + b + 5,
        ]
        good = [self.exchange(handle, length) for length in lengths]
        self.shim.close(handle)
        return good

    def collectives(self) -> dict[str, list[list[float]]]:
        """For each operation and type what came out; rank r's element i is 10 * r + i."""
        handle, count, found = self.open(), 3, {}
        for dtype in DType:
            for op in Op:
                if op is Op.BARRIER:
                    self.shim.collective(handle, op, 0, 0, 0)
                    continue
                wide_in = self.size if op in (Op.REDUCE_SCATTER, Op.ALLTOALL) else 1
                wide_out = self.size if op in (Op.ALLGATHER, Op.ALLTOALL) else 1
                source = pack([10.0 * self.rank + i for i in range(count * wide_in)], dtype)
                target = pack([0.0] * (count * wide_out), dtype)
                self.shim.collective(
                    handle, op, span_of(source).address, span_of(target).address, count, dtype
                )
                found.setdefault(op.name, []).append(unpack(target, dtype))
        large = pack([1.0] * 300_000, DType.F32)
        where = span_of(large).address
        self.shim.collective(handle, Op.ALLREDUCE, where, where, 300_000)
        found["in place"] = [sorted(set(unpack(large, DType.F32)))]
        self.shim.close(handle)
        return found

    def straggler(self) -> list[str]:
        """Rank 0 waits in vain; the others come when it has given up."""
        handle, said = self.open(), []
        buffer = bytearray(100)
        spans = [span_of(buffer)] * self.size
        if self.rank != 0:
            self.wait_for("gave up")
            return said
        start = time.monotonic()
        for _ in range(2):
            try:
                self.shim.exchange(handle, spans, spans, timeout_s=0.5)
            except (TimeoutError, LaunchError) as problem:
                said.append(f"{type(problem).__name__}: {problem}")
        assert time.monotonic() - start >= 0.5
        self.shim.close(handle)
        self.report(said)  # Intel MPI's launcher may end us as soon as the others are gone
        self.tell("gave up")
        return said

    def deserter(self) -> None:
        """Rank 0 fails and leaves; the others wait for what only it could do."""
        self.open()
        if self.rank == 0:
            raise RuntimeError
        self.wait_for("what rank 0 did")

    def absent(self) -> str:
        """Only rank 0 opens."""
        if self.rank != 0:
            self.wait_for("gave up")
            return ""
        try:
            self.shim.open(self.shim.address(), size=2, rank=0, timeout_s=0.5)
        except TimeoutError as problem:
            self.tell("gave up")
            return str(problem)
        return "opened"

    def again(self) -> list[bool]:
        """Communicators come and go, and rank 0, whom they met at, is long gone when the others leave."""
        good = []
        for mark in range(3):
            handle = self.open()
            good.append(self.exchange(handle, lambda a, b: 10 + b, mark))
            self.shim.close(handle)
        handles = [self.open(), self.open()]
        time.sleep(0.7 * self.rank)
        for handle in handles:
            self.shim.close(handle)
        return good

    def subsets(self) -> list[bool]:
        """The first two only, then in the other order, then all."""
        pairs = [(0, 1), (1, 0)]
        handles, good = [], []
        whole, size = self.size, 2
        for members in pairs if self.rank < 2 else []:
            handles.append(self.open(members))
            place, self.rank, self.size = self.rank, members.index(self.rank), size
            good.append(self.exchange(handles[-1], lambda a, b: 1000))
            self.rank, self.size = place, whole
        self.meetings = len(pairs)
        if self.folder.joinpath("everybody").exists():
            handles.append(self.open())
            good.append(self.exchange(handles[-1], lambda a, b: 1000))
        for handle in handles:
            self.shim.close(handle)
        return good

    def threads(self) -> list[bool]:
        """Two threads, each with a communicator of its own, at once."""
        handles, good = [self.open(), self.open()], []

        def work(handle: int) -> None:
            mine = [self.exchange(handle, lambda a, b, m=m: 97 * m % 3000, m) for m in range(200)]
            good.extend(mine)

        workers = [threading.Thread(target=work, args=(handle,)) for handle in handles]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for handle in handles:
            self.shim.close(handle)
        return [len(good) == 400, *sorted(set(good))]

    def no_interface(self) -> str:
        try:
            return self.shim.address().decode()
        except LaunchError as problem:
            return str(problem)

    def mistakes(self) -> list[str]:
        shim, said = self.shim, []
        address = shim.address()
        handle = shim.open(address, size=1, rank=0, timeout_s=PATIENCE_S)
        wrong: list[Callable[[], object]] = [
            lambda: shim.open(address[:-1], size=1, rank=0, timeout_s=1),
            lambda: shim.open(address, size=2, rank=2, timeout_s=1),
            lambda: shim.collective(handle, 9, 0, 0, 0),  # type: ignore[arg-type]
            lambda: shim.collective(handle, Op.ALLREDUCE, 0, 0, 0, 9),  # type: ignore[arg-type]
        ]
        for call in wrong:
            try:
                call()
            except LaunchError as problem:
                said.append(str(problem))
        shim.exchange(handle, [Span(0, 0)], [Span(0, 0)], timeout_s=1)  # and is as good as new
        shim.close(handle)
        return said

    def hydra(self) -> list[bool]:
        """Whether this process, and one it starts, think that mpiexec started them."""
        code = "import os; from plough.comm.oneccl import started_by_hydra as s; print(s(os.environ))"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return [started_by_hydra(os.environ), child.stdout.strip() == "True"]

    def report(self, result: object) -> None:
        self.tell(f"result-{self.rank}", json.dumps(result).encode())


def pack(values: Sequence[float], dtype: DType) -> bytearray:
    whole = struct.pack(f"<{len(values)}f", *values)
    if dtype is DType.F32:
        return bytearray(whole)
    return bytearray(b"".join(whole[i + 2 : i + 4] for i in range(0, len(whole), 4)))


def unpack(data: bytearray, dtype: DType) -> list[float]:
    whole = bytes(data)
    if dtype is DType.BF16:
        whole = b"".join(b"\0\0" + whole[i : i + 2] for i in range(0, len(whole), 2))
    return list(struct.unpack(f"<{len(whole) // 4}f", whole))


def be_a_rank(scenario: str, size: str, rank: str, folder: str) -> None:
    os.environ.update(json.loads(Path(folder, "environment").read_text()))
    me = Rank(int(os.environ["PMI_RANK"] if rank == "hydra" else rank), int(size), Path(folder))
    me.report(getattr(me, scenario)())


if __name__ == "__main__":
    be_a_rank(*sys.argv[1:])

# -- The tests -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oneccl() -> OneCcl:
    found = find_oneccl()
    if isinstance(found, NotUsable):
        pytest.skip(found.reason)
    return found


@pytest.fixture(scope="module")
def shim(oneccl: OneCcl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    output = tmp_path_factory.mktemp("oneccl") / "shim.so"
    done = subprocess.run(
        [*compile_command(oneccl), "-Werror", "-o", str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return output


class Job:
    """Starts the ranks of a scenario and gives what they returned, by rank."""

    def __init__(self, folder: Path, oneccl: OneCcl, shim: Path) -> None:
        self.folder, self.oneccl = folder, oneccl
        shutil.copy(shim, folder / "shim.so")
        self.output = ""

    def run(
        self,
        scenario: str,
        size: int,
        transport: Transport,
        *,
        hydra: bool | None = None,
        complete: bool = True,
        **settings: Any,
    ) -> list[Any]:
        hydra = transport is Transport.MPI if hydra is None else hydra
        if hydra and not os.access(HYDRA, os.X_OK):
            pytest.skip("no mpiexec.hydra beside this Python")
        log = settings.pop("log", None)
        wanted = environment_for(self.oneccl, transport, **settings)
        (self.folder / "environment").write_text(json.dumps(wanted | ({"CCL_LOG_LEVEL": log} if log else {})))
        words = [sys.executable, __file__, scenario, str(size)]
        launch = [str(HYDRA), "-bootstrap", "fork", "-n", str(size)]
        commands = (
            [[*launch, *words, "hydra", str(self.folder)]]
            if hydra
            else [[*words, str(rank), str(self.folder)] for rank in range(size)]
        )
        with (self.folder / "output").open("wb") as output:
            started = [
                subprocess.Popen(
                    command, stdout=output, stderr=output, env=clean_environment(), start_new_session=True
                )
                for command in commands
            ]
            try:
                until = time.monotonic() + JOB_S
                self.codes = [process.wait(max(0.1, until - time.monotonic())) for process in started]
            finally:
                for process in started:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
                self.output = (self.folder / "output").read_text(errors="replace")
        results = [self.folder / f"result-{rank}" for rank in range(size)]
        assert not complete or all(result.exists() for result in results), self.output
        return [json.loads(result.read_text()) if result.exists() else None for result in results]


def clean_environment() -> dict[str, str]:
    foreign = ("CCL_", "FI_", "PMI", "I_MPI", "MPI_", "HYDRA")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


@pytest.fixture
def job(tmp_path: Path, oneccl: OneCcl, shim: Path) -> Job:
    return Job(tmp_path, oneccl, shim)


BOTH = pytest.mark.parametrize("transport", list(Transport))


class TestBetweenProcesses:
    @BOTH
    @pytest.mark.parametrize("size", [2, 3])
    def test_exchange(self, job: Job, transport: Transport, size: int) -> None:
        assert job.run("exchanges", size, transport) == [[True] * 6] * size
        assert not any(job.codes), job.output

    @BOTH
    def test_collectives(self, job: Job, transport: Transport) -> None:
        first, second = job.run("collectives", 2, transport)
        for which in range(2):
            both = [
                {op: came[which] for op, came in rank.items() if op != "in place"} for rank in (first, second)
            ]
            assert both[0] == {
                "ALLREDUCE": [10, 12, 14],
                "BROADCAST": [0, 1, 2],
                "ALLGATHER": [0, 1, 2, 10, 11, 12],
                "REDUCE_SCATTER": [10, 12, 14],
                "ALLTOALL": [0, 1, 2, 10, 11, 12],
                "REDUCE": [10, 12, 14],
            }
            assert both[1] | {"REDUCE": None} == {
                "ALLREDUCE": [10, 12, 14],
                "BROADCAST": [0, 1, 2],
                "ALLGATHER": [0, 1, 2, 10, 11, 12],
                "REDUCE_SCATTER": [16, 18, 20],
                "ALLTOALL": [3, 4, 5, 13, 14, 15],
                "REDUCE": None,
            }
        assert first["in place"] == second["in place"] == [[2.0]]

    @BOTH
    def test_a_peer_that_does_not_come_to_the_exchange(self, job: Job, transport: Transport) -> None:
        first, _ = job.run("straggler", 2, transport, complete=False)
        assert first == [
            "TimeoutError: oneCCL: no answer from another rank within 0.5 s",
            "LaunchError: this oneCCL communicator failed before and cannot be used any more",
        ]

    def test_a_rank_that_fails_below_hydra_ends_the_job(self, job: Job) -> None:
        """It does not wait in an MPI_Finalize for the others, which wait for it."""
        start = time.monotonic()
        assert job.run("deserter", 2, Transport.MPI, complete=False) == [None, None]
        assert job.codes != [0]
        assert time.monotonic() - start < PATIENCE_S

    @pytest.mark.parametrize("hydra", [False, True])
    def test_a_peer_that_does_not_open(self, job: Job, hydra: bool) -> None:
        first, _ = job.run("absent", 2, Transport.OFI, hydra=hydra)
        assert first == "oneCCL: not all of 2 ranks came within 0.5 s"

    @BOTH
    def test_closed_and_opened_again(self, job: Job, transport: Transport) -> None:
        assert job.run("again", 2, transport) == [[True] * 3] * 2
        assert not any(job.codes), job.output

    def test_mpi_is_really_used(self, job: Job) -> None:
        job.run("again", 2, Transport.MPI, log="info")
        assert "CCL_ATL_TRANSPORT: mpi" in job.output

    def test_a_quiet_start(self, job: Job) -> None:
        job.run("again", 2, Transport.MPI)
        assert len(job.output.splitlines()) <= 2, job.output

    @BOTH
    def test_threads(self, job: Job, transport: Transport) -> None:
        assert job.run("threads", 2, transport) == [[True, True]] * 2

    def test_subsets_and_all(self, job: Job) -> None:
        (job.folder / "everybody").touch()
        assert job.run("subsets", 3, Transport.OFI) == [[True] * 3, [True] * 3, [True]]

    def test_leaders_alone_below_hydra(self, job: Job) -> None:
        """The third rank never opens anything; over MPI the others would wait for it."""
        assert job.run("subsets", 3, Transport.OFI, hydra=True) == [[True] * 2, [True] * 2, []]
        assert not any(job.codes), job.output

    def test_oneccls_own_threads(self, job: Job) -> None:
        assert job.run("again", 2, Transport.OFI, workers=True) == [[True] * 3] * 2

    def test_mistakes(self, job: Job) -> None:
        (said,) = job.run("mistakes", 1, Transport.OFI)
        assert said == [
            "not an address oneCCL gave: wrong length",
            "a rank outside of its group",
            "no such operation",
            "no such type",
        ]

    def test_no_such_interface(self, job: Job) -> None:
        (said,) = job.run("no_interface", 1, Transport.OFI, interface="nonesuch0")
        assert said == "CCL_KVS_IFACE=nonesuch0: no such network interface with an address"

    @pytest.mark.parametrize("hydra", [False, True])
    def test_knows_what_started_it(self, job: Job, hydra: bool) -> None:
        assert job.run("hydra", 1, Transport.OFI, hydra=hydra) == [[hydra, False]]


class TestShim:
    def test_one_that_does_not_load(self, tmp_path: Path) -> None:
        broken = tmp_path / "shim.so"
        broken.write_text("not a library")
        with pytest.raises(BuildError, match=r"the oneCCL shim does not load: .*shim\.so") as caught:
            OneCclShim(broken)
        assert "plough[oneccl]" in str(caught.value)

    def test_key_parts(self) -> None:
        parts = key_parts(FOUND)
        assert parts[0] == "2021.16.2"
        assert all(b"int plough_oneccl_exchange(" in part for part in parts[1:])

    def test_compile_command(self) -> None:
        command = compile_command(FOUND, compiler="c++")
        assert command[0] == "c++"
        assert "-o" not in command
        assert command[-2:] == ["/env/lib/libccl.so.1", "-Wl,-rpath,/env/lib"]
        assert command[command.index("-isystem") + 1] == "/env/include"

    def test_without_torch(self) -> None:
        code = "import sys; import plough.comm.oneccl; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


FOUND = OneCcl(
    version="2021.16.2",
    library=Path("/env/lib/libccl.so.1"),
    include=Path("/env/include"),
    mpi=Path("/env/lib/libmpi.so.12"),
    fabric=Path("/env/lib/libfabric.so.1"),
)


class TestEnvironment:
    def test_ofi(self) -> None:
        assert environment_for(FOUND, Transport.OFI) == {
            "CCL_ATL_TRANSPORT": "ofi",
            "CCL_LOG_LEVEL": "error",
            "CCL_OFI_LIBRARY_PATH": "/env/lib/libfabric.so.1",
            "CCL_PROCESS_LAUNCHER": "none",
            "CCL_WORKER_OFFLOAD": "0",
            "FI_PROVIDER_PATH": "/env/lib",
        }

    def test_mpi(self) -> None:
        assert environment_for(FOUND, Transport.MPI, local_rank=1, local_size=2) == {
            "CCL_ATL_TRANSPORT": "mpi",
            "CCL_LOG_LEVEL": "error",
            "CCL_MPI_LIBRARY_PATH": "/env/lib/libmpi.so.12",
            "CCL_OFI_LIBRARY_PATH": "/env/lib/libfabric.so.1",
            "CCL_PROCESS_LAUNCHER": "hydra",
            "CCL_WORKER_OFFLOAD": "0",
            "FI_PROVIDER_PATH": "/env/lib",
            "I_MPI_THREAD_SPLIT": "0",
        }

    def test_mpi_without_intel_mpi(self) -> None:
        with pytest.raises(LaunchError, match=r"needs libmpi\.so\.12, which is not installed"):
            environment_for(replace(FOUND, mpi=None), Transport.MPI)

    @pytest.mark.parametrize(
        ("settings", "more"),
        [
            ({"local_rank": 1, "local_size": 2}, {"CCL_LOCAL_RANK": "1", "CCL_LOCAL_SIZE": "2"}),
            ({"local_rank": 1}, {}),
            ({"workers": True}, {"CCL_WORKER_OFFLOAD": "1"}),
            ({"interface": "eth1"}, {"CCL_KVS_IFACE": "eth1", "FI_TCP_IFACE": "eth1"}),
        ],
    )
    def test_more(self, settings: dict[str, Any], more: dict[str, str]) -> None:
        plain = environment_for(FOUND, Transport.OFI)
        assert environment_for(FOUND, Transport.OFI, **settings) == plain | more

    def test_what_the_user_set_is_theirs(self) -> None:
        user = {"CCL_LOG_LEVEL": "info", "FI_PROVIDER_PATH": "/opt/fabric"}
        found = environment_for(FOUND, Transport.OFI, user=user)
        assert found == {
            name: value
            for name, value in environment_for(FOUND, Transport.OFI).items()
            if name not in ("CCL_LOG_LEVEL", "FI_PROVIDER_PATH")
        }

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"PMI_RANK": "0", "PMI_FD": "0"},
            {"PMI_RANK": "0", "I_MPI_HYDRA_UUID": "1"},
            {"PMI_RANK": "0", "I_MPI_HYDRA_UUID": "1", "PMI_FD": "no number"},
            {"PMI_RANK": "0", "I_MPI_HYDRA_UUID": "1", "PMI_FD": "9999"},
        ],
    )
    def test_not_started_by_hydra(self, environ: dict[str, str]) -> None:
        assert not started_by_hydra(environ)


class Environment:
    """An environment with packages in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.installed = root, {}

    def install(self, name: str, version: str, *files: str) -> None:
        info = self.root / "lib/python3/site-packages" / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(f"../../../{file},,\n" for file in files))
        for file in files:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            (self.root / file).touch()
        self.installed[name] = metadata.Distribution.at(info)

    def distribution(self, name: str) -> metadata.Distribution:
        if name not in self.installed:
            raise metadata.PackageNotFoundError(name)
        return self.installed[name]

    def find(self, problem: str | None = None) -> OneCcl | NotUsable:
        return find_oneccl(distribution=self.distribution, problem_of=lambda library: problem)


RUNTIME = ("oneccl-cpu", "2021.16.2", "lib/libccl.so", "lib/libccl.so.1")
HEADERS = ("oneccl-cpu-devel", "2021.16.2", "include/oneapi/ccl.hpp", "include/oneapi/ccl/kvs.hpp")
INTEL_MPI = ("impi-rt", "2021.18.1", "lib/libmpi.so.12", "lib/libfabric.so.1")


class TestFind:
    def test_all_there(self, tmp_path: Path) -> None:
        env = Environment(tmp_path)
        for package in (RUNTIME, HEADERS, INTEL_MPI):
            env.install(*package)
        assert env.find() == OneCcl(
            version="2021.16.2",
            library=tmp_path / "lib/libccl.so.1",
            include=tmp_path / "include",
            mpi=tmp_path / "lib/libmpi.so.12",
            fabric=tmp_path / "lib/libfabric.so.1",
        )

    def test_intel_mpi_from_elsewhere_or_not_at_all(self, tmp_path: Path) -> None:
        env = Environment(tmp_path)
        env.install(*RUNTIME)
        env.install(*HEADERS)
        (tmp_path / "lib/libmpi.so.12").touch()
        found = env.find()
        assert isinstance(found, OneCcl)
        assert (found.mpi, found.fabric) == (tmp_path / "lib/libmpi.so.12", None)

    @pytest.mark.parametrize(
        ("packages", "problem", "reason"),
        [
            ([], None, "oneCCL is not installed"),
            ([RUNTIME[:3]], None, "oneccl-cpu 2021.16.2 has no libccl.so.1"),
            (
                [(RUNTIME[0], "2021.17.2", *RUNTIME[2:])],
                "libccl.so.2: cannot open shared object file",
                "oneccl-cpu 2021.17.2 does not load: libccl.so.2: cannot open shared object file",
            ),
            ([RUNTIME], None, "oneccl-cpu 2021.16.2 is installed without its headers, oneccl-cpu-devel"),
            (
                [RUNTIME, (HEADERS[0], "2021.17.2", *HEADERS[2:])],
                None,
                "oneccl-cpu is 2021.16.2, but oneccl-cpu-devel 2021.17.2",
            ),
            ([RUNTIME, HEADERS[:2]], None, "oneccl-cpu-devel 2021.16.2 has no oneapi/ccl.hpp"),
        ],
    )
    def test_not_usable(
        self, tmp_path: Path, packages: list[tuple[str, ...]], problem: str | None, reason: str
    ) -> None:
        env = Environment(tmp_path)
        for name, version, *files in packages:
            env.install(name, version, *files)
        found = env.find(problem)
        assert found == NotUsable(reason)
        assert found.hint == "pip install 'plough[oneccl]' brings oneCCL 2021.16.2"

    def test_removed_behind_pips_back(self, tmp_path: Path) -> None:
        env = Environment(tmp_path)
        env.install(*RUNTIME)
        (tmp_path / "lib/libccl.so.1").unlink()
        assert env.find() == NotUsable("oneccl-cpu 2021.16.2 has no libccl.so.1")

    def test_required(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("plough.comm.oneccl.find_oneccl", lambda: NotUsable("it is not there", "get it"))
        with pytest.raises(LaunchError) as caught:
            require_oneccl()
        assert str(caught.value) == "it is not there\n\nhint: get it"
        monkeypatch.setattr("plough.comm.oneccl.find_oneccl", lambda: FOUND)
        assert require_oneccl() is FOUND


class TestLoading:
    def test_the_real_one(self, oneccl: OneCcl) -> None:
        assert load_problem(oneccl.library) is None

    def test_no_library(self, tmp_path: Path) -> None:
        (tmp_path / "libccl.so.1").write_text("nonsense, and enough of it to be read as the header of a file")
        problem = load_problem(tmp_path / "libccl.so.1")
        assert problem is not None
        assert problem.startswith(f"{tmp_path}/libccl.so.1: ")

    @pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("int missing(); int ask() { return missing(); }", "libccl.so.2: cannot open shared object file"),
            ("#include <cstdlib>\nstatic int x = (abort(), 1);", "ended a process with status -6"),
        ],
    )
    def test_as_broken_as_later_releases_and_worse(self, tmp_path: Path, source: str, said: str) -> None:
        (tmp_path / "two.cpp").write_text("int missing() { return 1; }")
        (tmp_path / "one.cpp").write_text(source)
        build = ["g++", "-shared", "-fPIC", "-o"]
        subprocess.run(
            [*build, "libccl.so.2", "two.cpp", "-Wl,-soname,libccl.so.2"], cwd=tmp_path, check=True
        )
        subprocess.run([*build, "libccl.so.1", "one.cpp", "libccl.so.2"], cwd=tmp_path, check=True)
        if "missing" in source:
            (tmp_path / "libccl.so.2").unlink()
        else:
            subprocess.run([*build, "libccl.so.1", "one.cpp"], cwd=tmp_path, check=True)
        problem = load_problem(tmp_path / "libccl.so.1")
        assert problem is not None
        assert said in problem
