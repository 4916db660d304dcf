"""`python -m tests.machines`: probe every tree and write <name>.json beside this file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from plough.topology import probe
from tests.machines.trees import NAMES, expected_file, unpack

for name in NAMES:
    with tempfile.TemporaryDirectory() as scratch:
        expected_file(name).write_text(probe(unpack(name, Path(scratch))).to_json() + "\n")
    print(expected_file(name))
