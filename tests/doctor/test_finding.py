"""Findings as text, and what they amount to."""

from __future__ import annotations

import pytest

from plough.doctor.finding import Finding, Severity, exit_code, render

OK = Finding(check="python", severity="ok", what="3.12.8", evidence="not shown")
BAD = Finding(
    check="oneccl",
    severity="error",
    what="is broken",
    evidence="one two three four five six",
    consequence="it fails",
    fix="pip install 'a-long-name==1' 'another==2'",
)


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        (["ok", "note"], 0),
        (["ok", "warning"], 1),
        (["warning", "error", "ok"], 2),
    ],
)
def test_exit_code(severities: list[Severity], code: int) -> None:
    assert exit_code([Finding(check="x", severity=one, what="y") for one in severities]) == code


def test_wrapped_but_for_the_fix() -> None:
    text = render([OK, BAD], width=30)
    assert text.splitlines() == [
        "ok       python  3.12.8",
        "error    oneccl  is broken",
        "  evidence     one two three four",
        "               five six",
        "  consequence  it fails",
        "  fix          pip install 'a-long-name==1' 'another==2'",
        "",
        "2 findings: 1 ok, 1 error",
    ]


def test_only_marks_are_painted_and_columns_stay() -> None:
    painted = render([OK, BAD], paint=lambda text, severity: f"<{text}>")
    assert painted.splitlines()[:2] == ["<ok>       python  3.12.8", "<error>    oneccl  is broken"]


def test_plurals() -> None:
    notes = [Finding(check="mpi", severity="note", what="a")] * 2
    assert render(notes).splitlines()[-1] == "2 findings: 2 notes"
