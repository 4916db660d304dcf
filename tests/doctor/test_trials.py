"""Looking and trying, in this very environment and in broken ones made of small files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from plough.contract import Env
from plough.doctor import Facts, judge, programs
from plough.doctor.facts import Launcher, Trial
from plough.doctor.processes import Attempt, run_attempts
from plough.doctor.trials import attempts_for, gather, look
from tests.doctor.made_up import WHOLE


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def try_program(text: str, *arguments: str, **environment: str) -> Trial:
    command = (sys.executable, "-W", "ignore", "-c", text, *arguments)
    attempt = Attempt(name="it", commands=(command,), timeout_s=120, environment=environment)
    return run_attempts([attempt], os.environ, at_once=1)["it"]


def seen(tmp_path: Path, *folders: str, **environ: str) -> Facts:
    path = os.pathsep.join(str(tmp_path / folder) for folder in folders)
    return look(
        {"PATH": path, **environ},
        prefix=tmp_path / "venv",
        executable=tmp_path / "venv/bin/python",
        oneapi_ccl=str(tmp_path / "oneapi/libccl.so.1"),
    )


# This environment ------------------------------------------------------------------------------------------
def test_everything_installed_here_works() -> None:
    """All but the ccl backend, which has tests of its own and takes its time to compile."""
    facts = look(os.environ)
    attempts = [one for one in attempts_for(facts, os.environ) if one.name != "ccl"]
    facts = replace(facts, trials=run_attempts(attempts, os.environ, at_once=2))
    assert [(name, trial) for name, trial in facts.trials.items() if not trial.worked] == []
    assert {"torch", "gloo", "transformers", "accelerate", "datasets"} <= set(facts.trials)
    assert facts.trials["torch"].found["numpy"] == ""
    wrong = [one for one in judge(facts) if one.severity in ("warning", "error")]
    assert [one for one in wrong if one.check not in ("mpi", "compiler", "openmp")] == []


def test_quick_starts_nothing_and_nobody_imports_torch() -> None:
    code = (
        "import sys, subprocess\n"
        "def refuse(*a, **k): raise AssertionError(a)\n"
        "subprocess.Popen.__init__ = refuse\n"
        "from plough.doctor import gather, judge\n"
        "judge(gather(quick=True, environ={'PATH': ''}))\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# MPI -------------------------------------------------------------------------------------------------------
def test_launchers_in_the_order_of_path(tmp_path: Path) -> None:
    program(tmp_path / "b/mpirun.mpich")
    (tmp_path / "b/mpirun").symlink_to("mpirun.mpich")
    program(tmp_path / "a/mpirun.openmpi")
    (tmp_path / "a/mpirun").symlink_to("mpirun.openmpi")
    (tmp_path / "link").symlink_to("b")
    program(tmp_path / "a/mpiexec")
    facts = seen(tmp_path, "b", "nothing", "a", "link", "a")
    assert facts.launchers == (
        Launcher(path=str(tmp_path / "b/mpirun"), flavour="mpich", on_path=True),
        Launcher(path=str(tmp_path / "a/mpirun"), flavour="openmpi", on_path=True),
    )
    assert facts.mpirun == str(tmp_path / "b/mpirun")


def test_the_environments_own_counts_without_being_on_path(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").touch()
    for name in ("mpirun", "mpiexec.hydra", "impi_info"):
        program(tmp_path / "venv/bin" / name)
    facts = seen(tmp_path, "a")
    own = Launcher(path=str(tmp_path / "venv/bin/mpirun"), flavour="intel", on_path=False)
    assert (facts.launchers, facts.mpirun) == ((own,), own.path)
    assert seen(tmp_path, "a", "venv/bin").launchers == (replace(own, on_path=True),)


def test_mpiexec_where_there_is_no_mpirun(tmp_path: Path) -> None:
    program(tmp_path / "a/mpiexec.mpich")
    (tmp_path / "a/mpiexec").symlink_to("mpiexec.mpich")
    facts = seen(tmp_path, "a")
    assert facts.launchers == (Launcher(path=f"{tmp_path}/a/mpiexec", flavour="mpich", on_path=True),)
    assert facts.mpirun is None


def tried(facts: Facts, *names: str) -> Facts:
    attempts = [one for one in attempts_for(facts, {"PATH": os.environ["PATH"]}) if one.name in names]
    assert len(attempts) == len(names)
    return replace(facts, trials=run_attempts(attempts, os.environ, at_once=2))


def test_an_mpirun_finds_its_parts_and_misses_its_library(tmp_path: Path) -> None:
    # Intel's mpirun is a script that looks for mpiexec.hydra on PATH, activated or not.
    mpirun = program(tmp_path / "bin/mpirun", 'exec mpiexec.hydra "$@"')
    program(tmp_path / "bin/mpiexec.hydra", "echo 'Intel(R) MPI Library, Version 2021.99'")
    launcher = Launcher(path=str(mpirun), flavour="intel", on_path=False)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so.12").write_text("not a library")
    facts = replace(WHOLE, launchers=(launcher,), mpirun=launcher.path, trials={})
    facts = tried(facts, f"mpirun {mpirun}", f"libmpi {mpirun}")
    assert facts.trials[f"mpirun {mpirun}"].said == "Intel(R) MPI Library, Version 2021.99"
    found = {one.what: one for one in judge(facts) if one.check == "mpi"}
    missing = found[f"Intel MPI at {mpirun} is there without its library"]
    assert "invalid ELF header" in missing.evidence or "file too short" in missing.evidence


def test_a_hanging_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.doctor.trials.ANSWER_S", 0.5)
    mpirun = program(tmp_path / "bin/mpirun", "exec sleep 60")
    launcher = Launcher(path=str(mpirun), flavour=None, on_path=True)
    facts = tried(replace(WHOLE, launchers=(launcher,), mpirun=launcher.path, trials={}), f"mpirun {mpirun}")
    [found] = [one for one in judge(facts) if one.check == "mpi" and one.severity == "error"]
    assert found.evidence == "`mpirun --version`: no end after 0.5 s"


# Libraries -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libccl.so.1 that needs a libccl.so.2 which is not there: what oneccl-cpu 2021.17 is."""
    folder = tmp_path_factory.mktemp("broken")
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    whole = folder / "libccl.so.2"
    shared = ("cc", "-shared", "-fPIC", str(source))
    try:
        subprocess.run([*shared, "-Wl,-soname,libccl.so.2", "-o", str(whole)], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    link = ("-Wl,--no-as-needed", str(whole), "-Wl,-soname,libccl.so.1")
    subprocess.run([*shared, *link, "-o", str(folder / "libccl.so.1")], check=True, timeout=60)
    (folder / "elsewhere").mkdir()
    whole.rename(folder / "elsewhere/libccl.so.2")
    return folder / "libccl.so.1"


def test_a_broken_oneccl(shim: Path) -> None:
    facts = replace(
        WHOLE,
        packages={**WHOLE.packages, "oneccl-cpu": replace(WHOLE.packages["oneccl-cpu"], version="2021.17.2")},
        oneccl_file=str(shim),
        trials={},
    )
    facts = tried(facts, f"libccl {shim}")
    [found] = [one for one in judge(facts) if one.check == "oneccl" and one.severity == "error"]
    assert found.what == "oneccl-cpu 2021.17.2 is a broken release"
    assert found.evidence.startswith(f"{shim}: OSError: libccl.so.2: cannot open shared object file")
    assert found.fix == "pip install 'oneccl-cpu==2021.16.2' 'impi-rt>=2021.16'"


def test_the_same_with_its_other_half(shim: Path) -> None:
    trial = try_program(programs.LIBRARY, str(shim), LD_LIBRARY_PATH=str(shim.parent / "elsewhere"))
    assert (trial.outcome, trial.libraries) == (
        "worked",
        (str(shim), str(shim.parent / "elsewhere/libccl.so.2")),
    )


def test_a_bare_name_that_stands_for_nothing() -> None:
    trial = try_program(programs.LIBRARY, "libnosuchthing.so.7")
    assert (trial.outcome, trial.found) == ("worked", {"absent": "yes"})


def test_the_first_that_loads_will_do(tmp_path: Path) -> None:
    (tmp_path / "libm.so.6").write_text("no")
    trial = try_program(programs.LIBRARY, str(tmp_path / "libm.so.6"), "libgone.so.1", "libm.so.6")
    assert trial.worked
    assert len(trial.libraries) == 1


def test_where_oneccl_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "oneapi").mkdir()
    (tmp_path / "oneapi/libccl.so.1").touch()
    facts = seen(tmp_path)
    assert (facts.oneccl_file, facts.other_libccl) == (
        None,
        (f"{tmp_path}/oneapi/libccl.so.1", "libccl.so.1"),
    )


# Programs --------------------------------------------------------------------------------------------------
def module(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(folder)


def test_old_bindings_that_end_the_process(tmp_path: Path) -> None:
    module(tmp_path, "torch", "")
    module(tmp_path, "ipex", "import os\nprint('ERROR! needs PyTorch 2.8', flush=True)\nos._exit(127)")
    trial = try_program(programs.IMPORT, "torch", "ipex", PYTHONPATH=str(tmp_path))
    assert (trial.outcome, trial.said) == ("failed", "ERROR! needs PyTorch 2.8")


PLOUGH = str(Path(__file__).parents[2] / "src")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            "def load_extension():\n    import json\n    return json",
            Trial(outcome="worked"),
        ),
        (
            "from plough.errors import BuildError\n"
            "def load_extension(): raise BuildError('no compiler', hint='get one')",
            Trial(
                outcome="failed",
                said="exit code 1, without a word",
                found={"cause": "no compiler", "hint": "get one"},
            ),
        ),
        (
            "import nosuchmodule",
            Trial(outcome="failed", said="ModuleNotFoundError: No module named 'nosuchmodule'"),
        ),
        (None, Trial(outcome="worked", found={"absent": "yes"})),
    ],
    ids=["works", "does not build", "is broken", "is absent"],
)
def test_the_ccl_backend(tmp_path: Path, build: str | None, expected: Trial) -> None:
    module(tmp_path, "plough.__init__", "")
    module(tmp_path, "plough.errors", (Path(PLOUGH) / "plough/errors.py").read_text())
    if build is not None:
        module(tmp_path, "plough.comm.__init__", "")
        module(tmp_path, "plough.comm.build", build)
    trial = try_program(programs.CCL, PYTHONPATH=str(tmp_path))
    assert replace(trial, seconds=0.0) == expected


# Attempts --------------------------------------------------------------------------------------------------
def test_what_would_be_tried() -> None:
    names = [one.name for one in attempts_for(WHOLE, {})]
    assert names == [
        "mpirun /venv/bin/mpirun",
        "libmpi /venv/bin/mpirun",
        "libccl /venv/lib/libccl.so.1",
        "libccl libccl.so.1",
        "compiler",
        "torch",
        "gloo",
        "ccl",
        "transformers",
        "accelerate",
        "datasets",
    ]


def test_what_is_not_installed_is_not_tried() -> None:
    bare = replace(WHOLE, packages={}, launchers=(), compiler=None, oneccl_file=None)
    assert [one.name for one in attempts_for(bare, {})] == ["libccl libccl.so.1"]


def test_old_bindings_are_tried_after_torch() -> None:
    old = dict.fromkeys(("oneccl-bind-pt", "intel-extension-for-pytorch"), WHOLE.packages["torch"])
    made = {one.name: one for one in attempts_for(replace(WHOLE, packages=old), {})}
    assert made["bindings"].commands[0][-2:] == ("torch", "oneccl_bindings_for_pytorch")
    assert made["ipex"].commands[0][-2:] == ("torch", "intel_extension_for_pytorch")


@pytest.mark.parametrize(("environ", "interface"), [({}, "lo"), ({Env.GLOO_SOCKET_IFNAME: "eth1"}, "eth1")])
def test_gloo_goes_where_plough_run_sends_it(environ: dict[str, str], interface: str) -> None:
    [gloo] = [one for one in attempts_for(WHOLE, environ) if one.name == "gloo"]
    assert gloo.environment[Env.GLOO_SOCKET_IFNAME] == interface
    assert len(gloo.commands) == 2


def test_a_compiler_of_the_users_choice(tmp_path: Path) -> None:
    assert seen(tmp_path, CXX="ccache g++-12").compiler == "ccache g++-12"
    made = {one.name: one for one in attempts_for(replace(WHOLE, compiler="ccache g++-12"), {})}
    assert made["compiler"].commands == (("ccache", "g++-12", "--version"),)
    assert seen(tmp_path, "a").compiler is None
    program(tmp_path / "a/clang++")
    assert seen(tmp_path, "a").compiler == str(tmp_path / "a/clang++")
    garbled = {one.name: one for one in attempts_for(replace(WHOLE, compiler="g++ 'x"), {})}
    assert garbled["compiler"].commands == (("g++ 'x", "--version"),)


@pytest.mark.parametrize(("name", "manager"), [("dnf", "dnf"), ("apt-get", "apt-get"), ("pacman", None)])
def test_package_manager(tmp_path: Path, name: str, manager: str | None) -> None:
    program(tmp_path / "a" / name)
    assert seen(tmp_path, "a").package_manager == manager


def test_conda_comes_first(tmp_path: Path) -> None:
    (tmp_path / "venv/conda-meta").mkdir(parents=True)
    assert seen(tmp_path).package_manager == "conda"


def test_a_trial_is_no_rank_of_the_job_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}

    def spy(attempts: object, environment: dict[str, str], **_: object) -> dict[str, Trial]:
        given.update(environment)
        return {}

    monkeypatch.setattr("plough.doctor.trials.run_attempts", spy)
    gather(environ={"PATH": "", Env.RANK: "1", Env.PMI_SIZE: "2", "HOME": "/x"})
    assert given == {"PATH": "", "HOME": "/x"}
