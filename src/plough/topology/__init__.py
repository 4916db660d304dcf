"""What this machine is and what a process here may use of it: `probe()` gives a frozen `Machine`.

Knows nothing of plans, launchers or torch.
"""

from __future__ import annotations

from plough.topology.machine import Cache, Core, Limits, Machine, Node, Software
from plough.topology.probe import probe
from plough.topology.software import find_software

__all__ = ["Cache", "Core", "Limits", "Machine", "Node", "Software", "find_software", "probe"]
