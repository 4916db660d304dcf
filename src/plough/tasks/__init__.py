"""Built-in training tasks. Each is a module whose `main(argv)` parses, trains and returns an exit code.

This file is read before any rank exists, so it names modules and imports none of them.
"""

from __future__ import annotations

import msgspec

__all__ = ["TASKS", "Task"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    summary: str


TASKS = {
    "qa": Task(
        module="plough.tasks.question_answering.main",
        summary="extractive question answering: find the answer to a question in a text",
    ),
}
