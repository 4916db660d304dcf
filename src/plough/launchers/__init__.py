"""Starting ranks: each launcher renders a plan to exactly what it will start. No torch in here."""

from plough.launchers.base import Command, Launcher, Rendered
from plough.launchers.local import render_local
from plough.launchers.mpi import render_mpi
from plough.launchers.submit import JobResult, job_folder, submit

LAUNCHERS: dict[str, Launcher] = {"local": render_local, "mpi": render_mpi}

__all__ = ["LAUNCHERS", "Command", "JobResult", "Launcher", "Rendered", "job_folder", "submit"]
