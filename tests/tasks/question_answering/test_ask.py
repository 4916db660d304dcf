"""Asking a fine-tuned folder: in Python, and as `plough ask`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plough.cli.main import main
from plough.errors import ModelError, UsageError
from plough.tasks.question_answering.ask import Reader
from tests.tasks.question_answering.conftest import CHINESE, WORDS

CONTEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def reader(model_folder: Path) -> Reader:
    return Reader(str(model_folder), length=48, stride=16)


@pytest.mark.parametrize("context", [CONTEXT, " ".join(WORDS * 30), CHINESE * 20, "king", "👩‍🚀 flew"])
def test_answers_are_cut_from_the_context(reader: Reader, context: str) -> None:
    found = reader.ask("who built it?", context, top=5)
    assert 1 <= len(found.nbest) <= 5
    assert all(0 <= c.start < c.end <= len(context) for c in found.nbest)
    assert all(context[c.start : c.end] == c.text != "" for c in found.nbest)
    assert [c.probability for c in found.nbest] == sorted((c.probability for c in found.nbest), reverse=True)
    # Shares of the best candidates, of which these are the first: the same however few are asked for.
    assert 0 < sum(c.probability for c in found.nbest) <= 1 + 1e-6
    assert reader.ask("who built it?", context, top=1).nbest == found.nbest[:1]
    assert found.text == found.nbest[0].text
    assert found.null_odds is None


def test_windows_of_a_long_context_all_count(reader: Reader) -> None:
    """The best answer of the whole is the best of any window: asking a part alone changes no score in it."""
    answers = {c.text for c in reader.ask("who?", "old king " * 200, top=20).nbest}
    assert answers
    starts = [c.start for c in reader.ask("who?", "old king " * 200, top=20).nbest]
    assert max(starts) > 40


def test_no_answer_when_allowed(reader: Reader) -> None:
    found = reader.ask("who?", CONTEXT, top=100_000, allow_no_answer=True)
    assert found.null_odds is not None
    assert "" in {c.text for c in found.nbest}


@pytest.mark.parametrize(("question", "context"), [("", "a king"), ("who?", " \n")])
def test_nothing_to_ask_or_read_is_refused(reader: Reader, question: str, context: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        reader.ask(question, context)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        Reader(str(tmp_path))


def test_command_line(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "context.txt"
    file.write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    argv = ["ask", "--model", str(model_folder), "--question", "who?", "--question", "what?"]
    assert main([*argv, "--context-file", str(file), "--top", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["question"] for line in lines] == ["who?", "what?"]
    for line in lines:
        assert len(line["answers"]) == 2
        for answer in line["answers"]:
            assert CONTEXT[answer["start"] : answer["end"]] == answer["text"]
            assert 0 < answer["probability"] <= 1

    assert main([*argv, "--context", CONTEXT]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "who?"
    assert "(score " in shown[1]
    assert "characters" in shown[1]


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--context-file", "gone.txt"], "--context-file gone.txt: No such file"),
        (["--context", " "], "the context is empty"),
        (["--context", "a king", "--top", "0"], "--top 0"),
    ],
)
def test_command_line_mistakes(
    flags: list[str], cause: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "--model", str(model_folder), "--question", "who?", *flags]) == 2
    assert f"error: {cause}" in capsys.readouterr().err
