"""Tokenizers of the three kinds that matter, made in a moment, and a tiny model folder to train from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast

WORDS = str.split(
    "the river city was founded in old times by a king who built seven bridges over cold water and named "
    "each after his sister where did people trade salt for silver before winter came who sold what when"
)
CHINESE = "故宫位于北京市中心始建于一四零六年是明清两代的皇家宫殿谁在哪里什么时候建成"
CORPUS = [
    " ".join(WORDS),
    CHINESE,
    "Øresund café naïve 1406 3.5 km², “quoted” – and (bracketed)!",
    "👩‍🚀🚀 สวัสดีชาวโลก",
]


def wordpiece() -> PreTrainedTokenizerFast:
    """Like BERT's: token types, lower case, Chinese by character, pads on the right."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        model_max_length=128,
    )


def byte_level() -> PreTrainedTokenizerFast:
    """Like RoBERTa's: bytes, a space belongs to the word after it, no token types."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        model_max_length=128,
        model_input_names=["input_ids", "attention_mask"],
    )


def left_padding() -> PreTrainedTokenizerFast:
    """Like XLNet's: the context comes first, CLS last, and it pads on the left."""
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2",
        pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
        special_tokens=[("[SEP]", 3), ("[CLS]", 2)],
    )
    tokenizer.padding_side = "left"
    return tokenizer


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "wordpiece": wordpiece,
    "byte-level": byte_level,
    "left-padding": left_padding,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 2 layers of 32 with the word-piece tokenizer; the answer head is there already."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    tokenizer = wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def squad(questions: Sequence[tuple[str, str, str | None]]) -> dict[str, Any]:
    """SQuAD v2.0 JSON of (question, context, answer); an answer of None is an impossible question."""
    data = []
    for number, (question, context, answer) in enumerate(questions):
        answers = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
        qa = {"id": f"q{number}", "question": question, "answers": answers, "is_impossible": answer is None}
        data.append({"title": "t", "paragraphs": [{"context": context, "qas": [qa]}]})
    return {"version": "v2.0", "data": data}


def river(number: int) -> tuple[str, str, str]:
    """A question whose answer is where it is for a reason: the word after "named"."""
    sister = WORDS[(7 * number) % len(WORDS)]
    rest = " ".join(WORDS[number % 20 : number % 20 + 12])
    return "who was each named after?", f"{rest} each was named {sister} by a king. {rest}", sister


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.json, dev.json, impossible.json (v2.0) and test.json, which has no labels."""
    folder = tmp_path_factory.mktemp("data")
    for name, numbers in (("train", range(24)), ("dev", range(30, 42))):
        content = squad([river(n) for n in numbers])
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    mixed: list[tuple[str, str, str | None]] = [
        ("what did they trade?", river(n)[1], None) if n % 3 == 0 else river(n) for n in range(12)
    ]
    (folder / "impossible.json").write_text(json.dumps(squad(mixed)), encoding="utf-8")
    unlabelled = [
        {"id": f"t{n}", "question": river(n)[0], "context": river(n)[1] * (1 + 4 * (n % 2))} for n in range(5)
    ]
    (folder / "test.json").write_text(json.dumps({"data": unlabelled}), encoding="utf-8")
    return folder
