"""From a path to a stream of text: what kind of file it is, how it is packed and encoded.

Knows bytes and encodings; knows nothing of questions, JSON or tables.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from plough.errors import DataError

__all__ = ["binary_stream", "is_parquet", "suffix_of", "text_stream"]

# Longest marks first: UTF-32's little-endian mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

# First bytes of things that are saved under a data file's name by mistake, and what to do about each.
_NOT_DATA = (
    (b"PK\x03\x04", "a zip archive or spreadsheet", "unpack it, or save it as CSV or JSON"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file", "run `git lfs pull` where it lives"),
    (b"<!doctype html", "a web page", "download the raw file instead of the page that shows it"),
    (b"<html", "a web page", "download the raw file instead of the page that shows it"),
    (b"ARROW1", "an Arrow file", "save it as parquet or JSON lines: `dataset.to_json(...)`"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it first: `zstd -d FILE`"),
    (b"BZh", "bzip2-compressed", "unpack it first: `bunzip2 FILE`"),
    (b"\xfd7zXZ", "xz-compressed", "unpack it first: `unxz FILE`"),
)


def suffix_of(path: Path) -> str:
    """The extension that tells the format, lower case, without a `.gz` behind it: ".json", ".csv", ""."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def is_parquet(path: Path) -> bool:
    """Whether the file is parquet, by its first bytes or, when it is too damaged to say, by its name."""
    with binary_stream(path) as stream:
        return stream.read(4) == b"PAR1" or suffix_of(path) in (".parquet", ".pq")


@contextlib.contextmanager
def binary_stream(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, gunzipped when they are gzip's, whatever the name says.

    DataError, also while reading: not there, a folder, empty, unreadable, damaged gzip, not a data file.
    """
    with readable(path), open(path, "rb") as raw:
        stream: BinaryIO = raw
        if raw.peek(2)[:2] == b"\x1f\x8b":
            stream = cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw)))
        head = cast(io.BufferedReader, stream).peek(64)[:64]
        if not head:
            raise DataError(f"{path} is empty", hint="a data file with at least one question is needed")
        for mark, what, hint in _NOT_DATA:
            if head.lower().startswith(mark.lower()):
                raise DataError(f"{path} is {what}", hint=hint)
        yield stream


@contextlib.contextmanager
def text_stream(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file's text, line ends untouched, decoded as its byte order mark says, else as UTF-8.

    DataError as `binary_stream`, and naming the line when the bytes are not that encoding's.
    """
    with binary_stream(path) as stream:
        head = cast(io.BufferedReader, stream).peek(64)[:64]
        encoding = next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")
        if encoding == "utf-8" and b"\x00" in head:
            raise DataError(
                f"{path} holds zero bytes: it is binary, or UTF-16 without a byte order mark",
                hint=f"save it as UTF-8: `iconv -f utf-16 -t utf-8 {path.name}`",
            )
        text = io.TextIOWrapper(stream, encoding=encoding, newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            raise _wrong_encoding(path, encoding) from error
        finally:
            with contextlib.suppress(ValueError, OSError):
                text.detach()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what opening and reading a file can raise into DataErrors that name it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist", hint="check the path; it is relative to the folder you start from"
        ) from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder", hint="name a file inside it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is damaged or was cut off: {error}", hint="copy or download it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _wrong_encoding(path: Path, encoding: str) -> DataError:
    """Name the line: a buffered decoder only knows its own block."""
    with binary_stream(path) as stream:
        if encoding.startswith("utf-8"):
            for number, line in enumerate(stream, start=1):
                whole = line.decode("utf-8", "ignore").encode("utf-8")
                if whole != line:
                    at = next(
                        (i for i, pair in enumerate(zip(whole, line, strict=False)) if pair[0] != pair[1]),
                        len(whole),
                    )
                    column = len(line[:at].decode("utf-8", "ignore")) + 1
                    return DataError(
                        f"{path} is not UTF-8: line {number}, column {column} (byte 0x{line[at]:02x})",
                        hint=f"if it is from Windows: `iconv -f windows-1252 -t utf-8 {path.name}`",
                    )
    return DataError(f"{path} begins as {encoding} but is not all {encoding}", hint="save it as UTF-8")
