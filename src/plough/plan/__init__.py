"""From a machine to a launch plan, purely: nothing here reads a file, starts a process or imports torch."""

from plough.plan.environment import WATCHED
from plough.plan.make import make_plan
from plough.plan.plan import LaunchPlan, PlanRequest, RankPlan, Setting, Tuned

__all__ = ["WATCHED", "LaunchPlan", "PlanRequest", "RankPlan", "Setting", "Tuned", "make_plan"]
