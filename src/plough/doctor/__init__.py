"""Questions about the system, answered by trying. Never imports torch: what needs it runs elsewhere."""

from plough.doctor.facts import Facts
from plough.doctor.finding import Finding, exit_code, render
from plough.doctor.trials import gather
from plough.doctor.versions import judge

__all__ = ["Facts", "Finding", "exit_code", "gather", "judge", "render"]
