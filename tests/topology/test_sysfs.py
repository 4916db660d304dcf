"""The kernel's lists and small files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.topology._sysfs import MAX_ID, Tree, format_list, parse_list, to_int, to_kilobytes
from tests.topology.conftest import LayOut

IDS = st.sets(st.integers(0, MAX_ID) | st.integers(0, 40))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)),
        ("0", (0,)),
        ("", ()),
        ("\n", ()),
        ("5,1-2", (1, 2, 5)),
        ("1-3,2-4", (1, 2, 3, 4)),
        (" 0-1, 4 \n", (0, 1, 4)),
    ],
)
def test_parse_list(text: str, ids: tuple[int, ...]) -> None:
    assert parse_list(text) == ids


@pytest.mark.parametrize(
    "text",
    ["max", "3-1", "-1", "0-", ",", "0,,1", "0-3:1/2", "0 1", "0x1", "1_0", "0-99999999", "٣", "4294967295"],
)
def test_parse_list_refuses_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="in the list"):
        parse_list(text)


@given(IDS)
def test_lists_round_trip(ids: set[int]) -> None:
    assert parse_list(format_list(ids)) == tuple(sorted(ids))


@given(IDS)
def test_format_list_is_as_short_as_can_be(ids: set[int]) -> None:
    gaps = sum(1 for number in ids if number - 1 not in ids)
    text = format_list(ids)
    assert len([part for part in text.split(",") if part]) == gaps
    assert format_list(parse_list(text + "\n")) == text


@given(st.text(alphabet="0123456789-, \n٣x", max_size=12))
def test_parse_list_gives_ids_or_a_value_error(text: str) -> None:
    try:
        ids = parse_list(text)
    except ValueError:
        return
    assert ids == tuple(sorted(set(ids)))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12\n", 12),
        ("-1", -1),
        ("", None),
        (None, None),
        ("max", None),
        ("1_000", None),
        ("1.5", None),
        ("9" * 19, None),
    ],
)
def test_to_int(text: str | None, number: int | None) -> None:
    assert to_int(text) == number


@pytest.mark.parametrize(
    ("text", "size"),
    [("  1024 kB", 2**20), ("1024", None), ("9999999999999999 kB", None), ("-4 kB", None), (None, None)],
)
def test_to_kilobytes(text: str | None, size: int | None) -> None:
    assert to_kilobytes(text) == size


def test_tree_reads_under_its_root(lay_out: LayOut) -> None:
    tree = lay_out(
        {"/a/number": "7\n", "/a/list": "0-1\n", "/a/empty": "\n", "/a/words": "kvm\0", "/a/d12/": ""}
    )
    assert tree.number("/a/number") == 7
    assert tree.ids("/a/list") == (0, 1)
    assert tree.ids("/a/empty") == ()
    assert tree.text("/a/words") == "kvm"
    assert tree.names("/a") == ("d12", "empty", "list", "number", "words")
    assert tree.numbered("/a", "d") == (12,)
    assert tree.exists("/a/list")
    assert tree.is_dir("/a/d12")
    assert not tree.is_dir("/a/list")
    assert not tree.live


def test_what_cannot_be_read_is_none(lay_out: LayOut, tmp_path: Path) -> None:
    tree = lay_out({"/a/garbled": "0-x\n", "/a/directory/": ""})
    (tmp_path / "a/loop").symlink_to("loop")
    (tmp_path / "a/binary").write_bytes(b"\xff\xfe\x00\x01")
    for path in (
        "/a/garbled",
        "/a/directory",
        "/a/loop",
        "/a/binary",
        "/a/missing",
        "/a/garbled/below",
        "/nul\0",
    ):
        assert tree.number(path) is None, path
        assert tree.ids(path) is None, path
    assert tree.names("/missing") == ()
    assert tree.numbered("/missing", "cpu") == ()
    assert not tree.exists("/nul\0")
    assert not tree.is_dir("/nul\0")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read_is_none(lay_out: LayOut, tmp_path: Path) -> None:
    tree = lay_out({"/secret": "1\n"})
    (tmp_path / "secret").chmod(0)
    assert tree.number("/secret") is None


def test_only_the_running_machine_is_live() -> None:
    assert Tree("/").live
    assert Tree("/proc/..").live
