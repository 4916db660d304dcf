"""Writes the demo's question-answering data set into a folder: train.json and dev.json, as SQuAD v1.1.

    python examples/demo/make_dataset.py build/demo-data

The same bytes come out on every Python from 3.10 on. Nothing is downloaded and nothing is copied: the
sentences are in domains/*.txt, the names in lexicon.py, and grammar.py puts them together. README.md says
what keeps a memorised template from answering the dev questions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grammar import Domain, Story, read_domain, write_story
from lexicon import Draw

DOMAINS = Path(__file__).parent / "domains"
COMMON = "common"
DEV_ONLY = ("dishes", "observatories", "trials")
TRAIN_CONTEXTS = 352
DEV_CONTEXTS = 60
DEV_ONLY_CONTEXTS = 24
SEED = 1837


@dataclass(frozen=True)
class DataSet:
    """All the texts of the two files."""

    train: tuple[Story, ...]
    dev: tuple[Story, ...]


def build(seed: int = SEED) -> DataSet:
    """Write every text of the data set, the same for the same seed."""
    domains = {path.stem: read_domain(path) for path in sorted(DOMAINS.glob("*.txt"))}
    common = domains.pop(COMMON)
    held_out = [domains.pop(name) for name in DEV_ONLY]
    shared = list(domains.values())

    def stories(of: Sequence[Domain], count: int, split: str, first_seed: int) -> list[Story]:
        return [
            write_story(of[i % len(of)], common, Draw(first_seed + i, split), dev=split == "dev")
            for i in range(count)
        ]

    train = stories(shared, TRAIN_CONTEXTS, "train", seed)
    dev = stories(shared, DEV_CONTEXTS - DEV_ONLY_CONTEXTS, "dev", seed + 10_000)
    dev += stories(held_out, DEV_ONLY_CONTEXTS, "dev", seed + 20_000)
    order = Draw(seed, "train")
    return DataSet(tuple(order.shuffled(train)), tuple(order.shuffled(dev)))


def squad_json(stories: Sequence[Story], prefix: str) -> bytes:
    """The stories as a SQuAD v1.1 file, an article each."""
    data = []
    for number, story in enumerate(stories):
        qas = []
        for i, question in enumerate(story.questions):
            answer = {"answer_start": question.answer.start, "text": question.answer.text}
            qas.append({"id": f"{prefix}-{number:03}-{i:02}", "question": question.text, "answers": [answer]})
        data.append({"title": story.title, "paragraphs": [{"context": story.context, "qas": qas}]})
    text = json.dumps({"version": "1.1", "data": data}, ensure_ascii=False, indent=1)
    return (text + "\n").encode("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.json and dev.json of the demo data set.")
    parser.add_argument("folder", type=Path, help="where the two files go; made if it is not there")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    dataset = build()
    for name, stories in (("train", dataset.train), ("dev", dataset.dev)):
        content = squad_json(stories, name)
        (folder / f"{name}.json").write_bytes(content)
        questions = sum(len(s.questions) for s in stories)
        digest = hashlib.sha256(content).hexdigest()
        print(f"{name}.json: {len(stories)} contexts, {questions} questions, sha256 {digest[:16]}")


if __name__ == "__main__":
    main()
