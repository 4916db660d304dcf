"""Where in a context an answer really stands.

Pure text in, positions out. Knows nothing of files, ids or counts. Positions are Python characters (code
points) throughout; files written by JavaScript or Java count UTF-16 code units instead, and some count bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

__all__ = ["ContextFinder", "How", "Place", "fold"]

How: TypeAlias = Literal["exact", "utf16", "bytes", "moved", "found", "folded"]

# Scripts from here on (Thai, Lao, Tibetan, Hangul, kana, Chinese) put no spaces between words, so a
# neighbouring letter does not mean that a word was cut.
_FIRST_UNSPACED = "\u0e00"


class Place(msgspec.Struct, frozen=True):
    """A span of the context, `[start, end)`, without whitespace at its edges, and how it was found.

    how: "exact", the claim was true; "utf16" or "bytes", true when counted in those units; "moved", the text
    stands elsewhere; "found", there was no offset; "folded", only case, spacing or Unicode form differ.
    trimmed: the claimed text had whitespace at an edge.
    """

    start: int
    end: int
    how: How
    trimmed: bool = False


class ContextFinder:
    """Finds answers in one context; keeps what it learns of the context for the next answer."""

    def __init__(self, context: str) -> None:
        self.context = context

    def place(self, text: str, start: int | None) -> Place | None:
        """The span that an answer means, or None when the context does not contain it.

        The claimed offset is believed if the text stands there in any unit. Else the nearest occurrence to it
        is taken (the first, without an offset), occurrences that cut no word before those that do. Else the
        same with texts folded by `fold`. None for a text that is only whitespace.
        """
        core = text.strip()
        if not core:
            return None
        trimmed = core != text
        lead = len(text) - len(text.lstrip())
        claimed = None if start is None else start + lead
        if claimed is not None and self.context.startswith(core, claimed):
            return Place(claimed, claimed + len(core), "exact", trimmed)
        if start is not None:
            for how, counted in self._other_units(start):
                if self.context.startswith(core, counted + lead):
                    return Place(counted + lead, counted + lead + len(core), how, trimmed)
        best = _nearest(self._occurrences(core), claimed)
        if best is not None:
            return Place(best[0], best[1], "found" if start is None else "moved", trimmed)
        best = _nearest(self._folded_occurrences(core), claimed)
        return None if best is None else Place(best[0], best[1], "folded", trimmed)

    def _other_units(self, start: int) -> Iterator[tuple[How, int]]:
        """`start` read as UTF-16 code units and as UTF-8 bytes, where that makes a difference."""
        if start > 0 and not self.context.isascii():
            for how, encoding, size in (("utf16", "utf-16-le", 2), ("bytes", "utf-8", 1)):
                head = self._encoded(encoding)[: start * size]
                # "ignore" drops the half character that an offset into its middle leaves.
                counted = len(head.decode(encoding, "ignore"))
                if counted != start and len(head) == start * size:
                    yield how, counted  # type: ignore[misc]  # mypy widens the literals of the tuple

    def _encoded(self, encoding: str) -> bytes:
        return self._utf16 if encoding == "utf-16-le" else self._utf8

    @cached_property
    def _utf16(self) -> bytes:
        return self.context.encode("utf-16-le", "replace")

    @cached_property
    def _utf8(self) -> bytes:
        return self.context.encode("utf-8", "replace")

    def _occurrences(self, core: str) -> Iterator[tuple[int, int, bool]]:
        at = self.context.find(core)
        while at >= 0:
            yield at, at + len(core), self._whole_words(at, at + len(core))
            at = self.context.find(core, at + 1)

    def _whole_words(self, start: int, end: int) -> bool:
        text = self.context
        cut_left = start > 0 and _joined(text[start - 1], text[start])
        cut_right = end < len(text) and _joined(text[end - 1], text[end])
        return not cut_left and not cut_right

    def _folded_occurrences(self, core: str) -> Iterator[tuple[int, int, bool]]:
        wanted = fold(core)
        if not wanted or wanted not in self._folded:
            return
        at = self._folded_map[0].find(wanted)
        while at >= 0:
            _, starts = self._folded_map
            start, end = starts[at], starts[at + len(wanted) - 1] + 1
            # A match may begin or end inside a character that folds to several ("ﬁ"), or leave behind an
            # accent that belongs to its last letter: such a span does not say what the answer says.
            whole = end == len(self.context) or not unicodedata.combining(self.context[end])
            if whole and fold(self.context[start:end]) == wanted:
                yield start, end, self._whole_words(start, end)
            at = self._folded_map[0].find(wanted, at + 1)

    @cached_property
    def _folded(self) -> str:
        return fold(self.context)

    @cached_property
    def _folded_map(self) -> tuple[str, list[int]]:
        """`fold(context)` and, for each of its characters, the index in the context it comes from."""
        letters: list[str] = []
        origins: list[int] = []
        marks: list[tuple[int, str, int]] = []  # a run of combining marks, put in canonical order at its end

        def flush() -> None:
            for _, mark, origin in sorted(marks, key=lambda item: item[0]):
                letters.append(mark)
                origins.append(origin)
            marks.clear()

        for index, character in enumerate(self.context):
            for letter in _folded_character(character):
                order = unicodedata.combining(letter)
                if order:
                    marks.append((order, letter, index))
                    continue
                flush()
                if letter.isspace():
                    if letters and letters[-1] != " ":
                        letters.append(" ")
                        origins.append(index)
                    continue
                letters.append(letter)
                origins.append(index)
        flush()
        return "".join(letters), origins


def fold(text: str) -> str:
    """A form in which texts that differ only in case, spacing, Unicode composition, compatibility
    characters (ligatures, full-width forms) or invisible format characters are equal."""
    decomposed = unicodedata.normalize("NFKD", text)
    folded = unicodedata.normalize("NFKD", decomposed.casefold())
    if not folded.isascii():
        folded = "".join(character for character in folded if unicodedata.category(character) != "Cf")
        folded = unicodedata.normalize("NFKD", folded)  # marks may now follow one another in a new order
    return " ".join(folded.split())


def _folded_character(character: str) -> str:
    if character.isascii():
        return character.lower()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters are inside one word of a script that writes spaces."""
    return left.isalnum() and right.isalnum() and left < _FIRST_UNSPACED and right < _FIRST_UNSPACED


def _nearest(occurrences: Iterator[tuple[int, int, bool]], claimed: int | None) -> tuple[int, int] | None:
    """The best of (start, end, cuts no word): whole words first, then nearness, then the earliest."""
    near = 0 if claimed is None else claimed
    best = min(occurrences, key=lambda found: (not found[2], abs(found[0] - near), found[0]), default=None)
    return None if best is None else best[:2]
