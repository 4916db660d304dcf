"""`python -m tests.machines`: probe every tree and write <name>.json beside this file."""

from __future__ import annotations

from plough.topology import probe
from tests.machines.trees import NAMES, expected_file, unpacked

for name in NAMES:
    with unpacked(name) as root:
        expected_file(name).write_text(probe(root).to_json() + "\n")
    print(expected_file(name))
