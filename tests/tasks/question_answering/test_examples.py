"""The account of a read, as text and as JSON, of one file and of several."""

from __future__ import annotations

import json

import msgspec
import pytest

from plough.tasks.question_answering.examples import Answer, Example, Finding, ReadReport, merge_reports
from plough.tasks.question_answering.reading.ledger import REASONS


def report(path: str, *findings: Finding, read: int = 5, kept: int = 4, repaired: int = 2) -> ReadReport:
    return ReadReport(
        paths=(path,), formats=("CSV",), read=read, kept=kept, repaired=repaired, findings=findings
    )


MOVED = Finding(REASONS["offset_moved"], 2, ("line 2: a", "line 4: b"))
LOST = Finding(REASONS["answers_lost"], 1, ("line 3",))


def test_render() -> None:
    many = Finding(REASONS["offset_moved"], 1200, ("line 2: a",))
    assert report("d.csv", LOST, many, read=1327).render() == (
        "d.csv: CSV\n"
        "  1,327 questions read, 4 kept, 2 repaired, 1,323 dropped\n"
        "  repaired:\n"
        "    1,200 answers: answer_start was wrong; moved to the text's place\n"
        "      line 2: a\n"
        "      and 1,199 more\n"
        "  dropped:\n"
        "    1 question: none of its answers is in the context\n"
        "      line 3"
    )


def test_json_both_ways() -> None:
    built = report("d.csv", MOVED).to_builtins()
    assert json.loads(json.dumps(built))["dropped"] == 1
    assert built["findings"][0]["reason"]["code"] == "offset_moved"
    assert msgspec.convert(built, ReadReport) == report("d.csv", MOVED)


def test_merging_adds_counts_and_says_which_file() -> None:
    merged = merge_reports([report("x/a.csv", MOVED), report("x/b.csv", LOST, MOVED)])
    assert (merged.read, merged.kept, merged.repaired, merged.dropped) == (10, 8, 4, 2)
    assert merged.paths == ("x/a.csv", "x/b.csv")
    assert merged.counts() == {"offset_moved": 4, "answers_lost": 1}
    assert merged.counts("dropped") == {"answers_lost": 1}
    assert merged.findings[0].first == ("a.csv: line 2: a", "a.csv: line 4: b", "b.csv: line 2: a")
    again = merge_reports([merged, report("c.csv", MOVED)])
    assert again.findings[0].first == merged.findings[0].first
    assert merge_reports([report("a", MOVED)]) == report("a", MOVED)
    with pytest.raises(ValueError, match="at least one"):
        merge_reports([])


def test_labelled() -> None:
    bare = Example(id="1", question="q", context="c")
    assert not bare.labelled
    assert msgspec.structs.replace(bare, impossible=True).labelled
    assert msgspec.structs.replace(bare, answers=(Answer("c", 0),)).labelled
