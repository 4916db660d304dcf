"""all_reduce between two ranks, ccl beside gloo and oneCCL, against what ccl is to reach.

python benchmarks/collectives.py [--seconds-per-point 2] [--plot FILE.svg] [--show FILE.json]

Prints every figure with PASS or FAIL; the last line is one JSON object; exit code 1 if anything fails. Run it
on an otherwise idle machine. Needs `pip install 'plough[oneccl]'`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from plough.bench.result import Result, load_result
from plough.bench.sizes import KIB, MIB, size_name

SIZES = (64, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 25 * MIB, 64 * MIB)


class Target(NamedTuple):
    """For messages of these sizes `other` has to take at least `factor` times as long as ccl."""

    other: str
    smallest: int
    largest: int
    factor: float


TARGETS = (
    Target("gloo", 64, 64 * KIB, 40),
    Target("gloo", 25 * MIB, 25 * MIB, 3),
    Target("oneccl", 64, 64 * MIB, 1),
    Target("oneccl", 4 * MIB, 64 * MIB, 1.5),
)


class Verdict(NamedTuple):
    """One figure against the strictest target there is for it; `wanted` is None where there is none."""

    dtype: str
    size: int
    other: str
    ccl_us: float
    other_us: float
    wanted: float | None

    @property
    def ratio(self) -> float:
        return self.other_us / self.ccl_us

    @property
    def passed(self) -> bool:
        return self.wanted is None or self.ratio >= self.wanted

    def __str__(self) -> str:
        aim = (
            "" if self.wanted is None else f"{'PASS' if self.passed else 'FAIL'}  (at least {self.wanted:g})"
        )
        return (
            f"{self.dtype:<9} {size_name(self.size):>7}  ccl {self.ccl_us:>9.1f} us  {self.other:>6} "
            f"{self.other_us:>9.1f} us  {self.ratio:>6.2f}x  {aim}"
        ).rstrip()


def judge(result: Result) -> list[Verdict]:
    """Every backend at every point of all_reduce."""
    found = []
    for one in result.measured:
        ours = one.timing("ccl")
        for timing in one.timings:
            if ours is None or timing is ours or one.collective != "all_reduce":
                continue
            aims = [
                t.factor for t in TARGETS if t.other == timing.backend and t.smallest <= one.size <= t.largest
            ]
            wanted = max(aims, default=None)
            us = ours.us.median, timing.us.median
            found.append(Verdict(str(one.dtype), one.size, timing.backend, *us, wanted))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds-per-point", default="2", metavar="S")
    parser.add_argument("--rounds", default="10", metavar="N")
    parser.add_argument("--plot", metavar="FILE", help="draw it too")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="keep everything that was measured here")
    parser.add_argument("--show", metavar="FILE", type=Path, help="judge what --keep kept, measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = options.show or options.keep or Path(folder) / "collectives.json"
        if options.show is None:
            command = [
                *(sys.executable, "-m", "plough", "bench", "collectives", "--ranks", "2", "--json"),
                *("--collectives", "all_reduce", "--backends", "ccl,gloo,oneccl"),
                *("--sizes", ",".join(map(str, SIZES))),
                *("--seconds-per-point", options.seconds_per_point, "--rounds", options.rounds),
                *(["--plot", options.plot] if options.plot else []),
            ]
            with kept.open("wb") as file:
                code = subprocess.run(command, stdout=file, check=False).returncode
            if code != 0:
                return code
        result = load_result(kept)
    verdicts = judge(result)
    print(f"{result.setup.model}, {result.setup.ranks} ranks, cores of each: {result.setup.cores}")
    print(*verdicts, sep="\n")
    failed = sum(not one.passed for one in verdicts)
    print(f"{failed} of {sum(one.wanted is not None for one in verdicts)} targets missed")
    rows = [{**one._asdict(), "ratio": round(one.ratio, 3), "passed": one.passed} for one in verdicts]
    print(json.dumps({"machine": result.setup.model, "date": result.setup.date, "all_reduce": rows}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
