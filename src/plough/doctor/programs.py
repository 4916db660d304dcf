"""The programs that trials run with `python -c`, as text: they import what this process must not.

Each ends by calling `report`, whose line `processes.py` reads; a program that does not get there has failed.
None writes outside its working folder, which is made for it.
"""

from __future__ import annotations

__all__ = ["ACCELERATE", "CCL", "DATASETS", "GLOO", "IMPORT", "LIBRARY", "MARK", "TORCH", "TRANSFORMERS"]

MARK = "plough-trial: "
"""Begins the line that says what a program found."""

_REPORT = f"""
import json, os, re, sys

def mapped(pattern):
    lines = open("/proc/self/maps").read().splitlines()
    paths = {{line.split(maxsplit=5)[5] for line in lines if "/" in line}}
    return sorted((path for path in paths if re.match(pattern, os.path.basename(path))), key=os.path.basename)

def report(libraries=(), **found):
    print()
    print({MARK!r} + json.dumps({{"found": found, "libraries": list(libraries)}}), flush=True)

OPENMP = r"lib(gomp|iomp5|omp)[-.]"
"""

TORCH = (
    _REPORT
    + """
import torch
ones = torch.ones(16, 16)
assert (ones @ ones).sum().item() == 4096, "a product of two matrices is wrong"
trouble = ""
try:
    import numpy
    assert torch.from_numpy(numpy.ones(3)).sum().item() == 3 and torch.ones(3).numpy().sum() == 3
except Exception as error:
    trouble = f"{type(error).__name__}: {error}"
report(
    mapped(OPENMP),
    version=torch.__version__,
    cuda=torch.version.cuda or "",
    gpu="yes" if torch.cuda.is_available() else "no",
    numpy=trouble,
)
"""
)

# Making TrainingArguments is where transformers finds its accelerate too old.
TRANSFORMERS = (
    _REPORT
    + """
import transformers
from transformers import Trainer, TrainingArguments
TrainingArguments(output_dir="out", use_cpu=True, report_to="none").device
report(mapped(OPENMP), version=transformers.__version__)
"""
)

ACCELERATE = (
    _REPORT
    + """
import accelerate
assert accelerate.Accelerator(cpu=True).device.type == "cpu"
report(version=accelerate.__version__)
"""
)

DATASETS = (
    _REPORT
    + """
import datasets
assert datasets.Dataset.from_dict({"x": [1, 2]})[1] == {"x": 2}
report(version=datasets.__version__)
"""
)

# argv: modules, imported in that order.
IMPORT = (
    _REPORT
    + """
import importlib
modules = [importlib.import_module(name) for name in sys.argv[1:]]
report(version=str(getattr(modules[-1], "__version__", "")))
"""
)

# argv: rank, ranks. The store is a file, so that no port and no host name is needed.
GLOO = (
    _REPORT
    + """
import datetime
import torch
import torch.distributed as dist
rank, ranks = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group(
    "gloo",
    store=dist.FileStore(os.path.join(os.getcwd(), "store"), ranks),
    rank=rank,
    world_size=ranks,
    timeout=datetime.timedelta(seconds=60),
)
tensor = torch.arange(5, dtype=torch.float32) + rank
dist.all_reduce(tensor)
expected = [ranks * i + ranks * (ranks - 1) / 2 for i in range(5)]
dist.destroy_process_group()
if tensor.tolist() != expected:
    sys.exit(f"the allreduce gave {tensor.tolist()} in place of {expected}")
report()
"""
)

# argv: files or bare names of one library, the first that loads will do. A bare name that stands for nothing
# is reported as absent.
LIBRARY = (
    _REPORT
    + """
import ctypes
errors = []
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        if not str(error).startswith(f"{name}: cannot open shared object file"):
            errors.append(f"{type(error).__name__}: {error}")
        continue
    report(mapped(re.escape(os.path.basename(name).split(".so")[0]) + r"\\.so"))
    break
else:
    if errors:
        sys.exit("\\n".join(errors[::-1]))
    report(absent="yes")
"""
)

# The backend may be missing from this version of Plough, its compiler from this machine.
CCL = (
    _REPORT
    + """
try:
    from plough.comm.build import load_extension
except ModuleNotFoundError as error:
    if error.name not in ("plough.comm", "plough.comm.build"):
        raise
    report(absent="yes")
    sys.exit()
from plough.errors import PloughError
try:
    module = load_extension()
except PloughError as error:
    report(cause=error.cause, hint=error.hint or "")
    sys.exit(1)
report(mapped(re.escape(os.path.basename(getattr(module, "__file__", "") or "-"))))
"""
)
