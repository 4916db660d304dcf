"""Where an answer really stands."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plough.tasks.question_answering.reading.repair import ContextFinder, fold

BERLIN = "Berlin has 10 inhabitants, 2010 had 10 too."


@pytest.mark.parametrize(
    ("context", "text", "start", "expected"),
    [
        # context, claimed text and start -> (text found, start, how)
        (BERLIN, "10", 11, ("10", 11, "exact")),
        (BERLIN, "10", 0, ("10", 11, "moved")),
        (BERLIN, "10", 34, ("10", 36, "moved")),
        (BERLIN, "10", 30, ("10", 36, "moved")),  # the 10 of 2010, at 29, is nearer but cuts a number
        (BERLIN, "10", 10**9, ("10", 36, "moved")),
        (BERLIN, "01", 0, ("01", 28, "moved")),  # cuts a word, as every occurrence does
        (BERLIN, "10", None, ("10", 11, "found")),
        (BERLIN, "11", 11, None),
        (BERLIN, "", 0, None),
        (BERLIN, " \n", 0, None),
        ("", "x", 0, None),
        (BERLIN, " 10 ", 10, ("10", 11, "exact")),
        (BERLIN, "\u00a010\u3000", 10, ("10", 11, "exact")),
        (BERLIN, " 10", 3, ("10", 11, "moved")),
        ("𠮷野家 𠮷野 東京", "東京", 9, ("東京", 7, "utf16")),
        ("𠮷野家 𠮷野 東京", "東京", 7, ("東京", 7, "exact")),
        ("né à Zürich, Zürich", "Zürich", 7, ("Zürich", 5, "bytes")),
        ("中国北京中国", "中国", 3, ("中国", 4, "moved")),  # Chinese: the nearest, word or not
        ("กรุงเทพ เมืองไทย", "ไทย", -1, ("ไทย", 13, "moved")),
        ("مرحبا بالعالم", "بالعالم", None, ("بالعالم", 6, "found")),
        ("the  New\n York Times", "new york times", 0, ("New\n York Times", 5, "folded")),
        ("an inﬂuenza case", "influenza", 3, ("inﬂuenza", 3, "folded")),
        ("an influenza case", "inﬂuenza", 3, ("influenza", 3, "folded")),
        ("cafe\u0301 noir", "café", 0, ("cafe\u0301", 0, "folded")),
        ("café noir", "cafe\u0301", 0, ("café", 0, "folded")),
        ("cafe\u0301 noir", "CAFE", 0, None),  # an accent makes another word
        ("Ａ１２ 号", "a12", 0, ("Ａ１２", 0, "folded")),
        ("soft\u00adware", "software", 0, ("soft\u00adware", 0, "folded")),
        ("ﬁ", "i", 0, None),  # half a ligature
        ("STRASSE", "straße", 0, ("STRASSE", 0, "folded")),
        ("q\u0323\u0307x", "q\u0307\u0323x", 0, ("q\u0323\u0307x", 0, "folded")),  # marks in another order
    ],
)
def test_place(context: str, text: str, start: int | None, expected: tuple[str, int, str] | None) -> None:
    place = ContextFinder(context).place(text, start)
    found = None if place is None else (context[place.start : place.end], place.start, place.how)
    assert found == expected
    assert place is None or place.trimmed == (text != text.strip())


LETTERS = st.text(alphabet="abAB ﬁéß\n\u0301\u0323\u00ad\u3000中😀İςΣ가", max_size=40)


@given(LETTERS, st.data())
def test_any_span_of_the_context_is_found_from_any_offset(context: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(context)))
    end = data.draw(st.integers(start, len(context)))
    text = context[start:end]
    assume(text.strip())
    claimed = data.draw(st.one_of(st.none(), st.integers(0, 60)))
    place = ContextFinder(context).place(text, claimed)
    assert place is not None
    assert context[place.start : place.end] == text.strip()
    exact = ContextFinder(context).place(text, start)
    assert exact is not None
    assert exact.how == "exact"
    assert exact.start == start + len(text) - len(text.lstrip())


@given(LETTERS, st.data(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD", "upper", "lower", "spaces"]))
def test_a_changed_span_is_found_or_given_up_but_never_wrong(
    context: str, data: st.DataObject, change: str
) -> None:
    start = data.draw(st.integers(0, len(context)))
    text = context[start : data.draw(st.integers(start, len(context)))]
    assume(text.strip())
    changed = (
        unicodedata.normalize(change, text)
        if change.startswith("NF")
        else text.replace(" ", " \n ")
        if change == "spaces"
        else getattr(text, change)()
    )
    place = ContextFinder(context).place(changed, start)
    if place is not None:
        own = context[place.start : place.end]
        assert own == own.strip()
        assert fold(own) == fold(changed)


@given(st.text(max_size=60))
def test_the_map_folds_as_the_whole_does(context: str) -> None:
    letters, origins = ContextFinder(context)._folded_map
    assert letters.rstrip(" ") == fold(context)
    assert len(letters) == len(origins)


@given(st.text(alphabet="a𠮷é", min_size=1, max_size=30), st.integers(0, 29))
def test_offsets_in_other_units(context: str, index: int) -> None:
    index = min(index, len(context) - 1)
    context = context[:index] + "@" + context[index:]
    for how, encoding, size in (("utf16", "utf-16-le", 2), ("bytes", "utf-8", 1)):
        claimed = len(context[:index].encode(encoding)) // size
        place = ContextFinder(context).place("@", claimed)
        assert place is not None
        assert place.start == index
        assert place.how in ({"exact"} if claimed == index else {how, "utf16"})
