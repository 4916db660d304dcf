"""`ccl` is there in any process that imports torch, and nothing is built for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOK = """
import sys, torch, torch.distributed as dist
assert dist.Backend.CCL == "ccl" and dist.Backend("ccl") == "ccl"
assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # what is not asked for is not taken over
assert "plough_ccl" not in sys.modules and "plough.comm.backend" not in sys.modules
assert dist.Backend._plugins["CCL"].extended_api
from plough.comm.register import register
register()  # again does no harm
print("fine")
"""


def test_found_without_an_import() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


GLOO = """
import torch.distributed as dist, datetime, torch
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
dist.monitored_barrier(None, datetime.timedelta(seconds=5), True)
try:
    dist.split_group(None, [[0]])
except RuntimeError as error:
    print(error)
"""


def test_other_backends_keep_torchs_own_functions() -> None:
    done = subprocess.run([sys.executable, "-c", GLOO], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "No device associated with the default pg" in done.stdout


BAD_SPLITS = {
    "none": ([], "split_ranks cannot be None or empty"),
    "empty": ([[0], []], "the split group cannot be empty"),
    "twice": ([[0, 0]], "ranks in common"),
    "in two": ([[0], [0]], "ranks in common"),
    "not there": ([[0], [7]], r"\[7\] are not all ranks of a group of 1"),
}


@pytest.fixture(scope="module")
def group_of_one() -> object:
    import torch.distributed as dist

    from plough.comm.register import register

    register()
    dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.mark.parametrize("case", BAD_SPLITS)
def test_splits_that_make_no_sense(case: str, group_of_one: object) -> None:
    import torch.distributed as dist

    ranks, said = BAD_SPLITS[case]
    with pytest.raises(Exception, match=said):
        dist.split_group(split_ranks=ranks)


def test_a_group_of_one(group_of_one: object) -> None:
    import torch
    import torch.distributed as dist

    tensor = torch.arange(5.0)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert torch.equal(tensor, torch.arange(5.0))
    dist.barrier()
    with pytest.raises(TypeError, match="ccl cannot reduce"):
        dist.all_reduce(torch.zeros(4, dtype=torch.float8_e4m3fn))
    with pytest.raises(ValueError, match="band"):
        dist.all_reduce(tensor, dist.ReduceOp.BAND)
