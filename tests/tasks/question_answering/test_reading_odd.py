"""The real files in ../shared/data, each with the account that an independent count of it gives.

The counts were made apart from Plough, by comparing `context[start : start + len(text)]` with the text.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from plough.errors import DataError
from plough.tasks.question_answering.reading import read_examples
from tests.shared_data import shared_path

# file, for training or not -> read, kept, repaired questions, count per reason, kept answers, impossible
ACCOUNTS = [
    # 229 wrong offsets: 221 texts stand elsewhere, 8 nowhere (each lost a "<" to some HTML cleaner). 374
    # answers have edge whitespace, 3 of them among the 8.
    (
        "odd/covidqa-200421.json", True, 1327, 1319, 512,
        {
            "id_number": 1319, "edge_whitespace": 371, "offset_moved": 221,
            "answer_absent": 8, "answers_lost": 8,
        },
        1319, 0,
    ),
    (
        "odd/covidqa-200421.json", False, 1327, 1327, 512,
        {"id_number": 1327, "edge_whitespace": 371, "offset_moved": 221, "answer_unplaced": 8},
        1327, 0,
    ),
    # One context has a character outside the BMP before its five answers.
    (
        "odd/cmrc2018_trial.json", True, 1002, 1000, 8,
        {"question_empty": 2, "edge_whitespace": 3, "offset_utf16": 5}, 1000, 0,
    ),
    (
        "odd/cmrc2018_trial.json", False, 1002, 1000, 8,
        {"question_empty": 2, "edge_whitespace": 3, "offset_utf16": 5}, 1000, 0,
    ),
    ("odd/farm-answer-offset-wrong.json", True, 1, 1, 1, {"offset_moved": 1}, 1, 0),
    ("odd/farm-answer-wrong.json", True, 1, 0, 0, {"answer_absent": 1, "answers_lost": 1}, 0, 0),
    ("odd/farm-answer-wrong.json", False, 1, 1, 0, {"answer_unplaced": 1}, 1, 0),
    ("odd/farm-eval-sample.json", True, 3, 3, 0, {}, 4, 1),
    ("odd/farm-noanswer.json", True, 1, 1, 0, {}, 0, 1),
    ("odd/farm-vanilla.json", True, 1, 1, 0, {}, 2, 0),
    ("squad/squad-mini-train.json", True, 7423, 7423, 0, {}, 7423, 0),
    ("squad/squad-mini-dev.json", False, 2569, 2569, 0, {}, 8310, 0),
    ("squad/xquad.en.json", False, 1190, 1190, 0, {}, 1190, 0),
    ("squad/xquad.zh.json", False, 1190, 1190, 0, {}, 1190, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "training", "read", "kept", "repaired", "reasons", "answers", "impossible"), ACCOUNTS
)
def test_account(
    file: str,
    training: bool,
    read: int,
    kept: int,
    repaired: int,
    reasons: dict[str, int],
    answers: int,
    impossible: int,
) -> None:
    path = shared_path(f"data/{file}")
    examples, report = read_examples(path, require_answers=training)
    assert (report.read, report.kept, report.repaired) == (read, kept, repaired)
    assert report.counts() == reasons
    assert report.formats == ("SQuAD JSON, nested",)
    assert len(examples) == len({example.id for example in examples}) == kept
    assert sum(len(example.answers) for example in examples) == answers
    assert sum(example.impossible for example in examples) == impossible
    for example in examples:
        for answer in example.answers:
            if answer.start is None:
                assert not training
                assert answer.text not in example.context
            else:
                end = answer.start + len(answer.text)
                assert example.context[answer.start : end] == answer.text.strip()
    strict_fails = set(reasons) - {"id_number"}
    if strict_fails:
        with pytest.raises(DataError, match="strict"):
            read_examples(path, require_answers=training, strict=True)
    else:
        read_examples(path, require_answers=training, strict=True)


def test_strict_lists_what_it_found() -> None:
    path = shared_path("data/odd/cmrc2018_trial.json")
    with pytest.raises(DataError) as caught:
        read_examples(path, require_answers=True, strict=True)
    assert caught.value.cause == (
        f"{path}: strict reading allows no flaws, and found:\n"
        "  3 answers: whitespace at the edges trimmed\n"
        "    data[23].paragraphs[0].qas[1] (id TRIAL_21_QUERY_1):"
        " ' 过敏反应包括打喷嚏、喉咙肿胀以及麻疹，需要及时救治，且可能致命。'\n"
        "    data[162].paragraphs[0].qas[2] (id TRIAL_163_QUERY_2):"
        " '在2008年5月被裁定三项代理人使用文件意图欺骗主事人，及一项公职人员行为不当罪名成立，入囚九…\n"
        "    data[238].paragraphs[0].qas[2] (id TRIAL_161_QUERY_2): ' יִרְמְיָהוּ'\n"
        "  5 answers: answer_start counted UTF-16 code units\n"
        "    data[28].paragraphs[0].qas[0] (id TRIAL_210_QUERY_0): '俗名龙尖' at 14, found at 13\n"
        "    data[28].paragraphs[0].qas[1] (id TRIAL_210_QUERY_1):"
        " '本鱼分布于印度太平洋区，包括东非、马达加斯加、模里西斯、塞席尔群岛、红海、马尔地夫、斯里兰卡、…"
        " at 38, found at 37\n"
        "    data[28].paragraphs[0].qas[2] (id TRIAL_210_QUERY_2): '本鱼体呈银灰色' at 227, found at 226\n"
        "    and 2 more\n"
        "  2 questions: the question is empty\n"
        "    data[188].paragraphs[0].qas[4] (id TRIAL_776_QUERY_4)\n"
        "    data[206].paragraphs[0].qas[0] (id TRIAL_20_QUERY_0)"
    )


def test_moved_answers_are_near_where_they_were_claimed() -> None:
    path = shared_path("data/odd/covidqa-200421.json")
    examples, _ = read_examples(path, require_answers=True)
    claimed = {
        str(qa["id"]): qa["answers"][0]
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
    for example in examples:
        text, start = claimed[example.id]["text"], claimed[example.id]["answer_start"]
        core = start + len(text) - len(text.lstrip())
        assert example.answers[0].start is not None
        assert abs(example.answers[0].start - core) < 30
    assert max(len(example.context) for example in examples) == 67_322


def test_every_xquad_question_is_read_as_it_stands() -> None:
    path = shared_path("data/squad/xquad.zh.json")
    examples, _ = read_examples(path, require_answers=True)
    rows = [
        (qa["id"], qa["question"], paragraph["context"], qa["answers"][0]["text"])
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    assert [(e.id, e.question, e.context, e.answers[0].text) for e in examples] == rows
    assert len({hashlib.sha256(e.context.encode()).digest() for e in examples}) == 240
