"""Writing a file so that it is there whole or not at all.

Ground floor: knows only `plough.errors`, and nothing of what the text means.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plough.errors import PloughError

__all__ = ["staged_folder", "write_json_atomic", "write_text_atomic"]

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or write to another disk",
    errno.EDQUOT: "the disk quota is used up: free some space, or write to another disk",
    errno.EROFS: "the file system is read-only: write somewhere else",
    errno.EACCES: "this user may not write there: choose a folder you own",
    errno.EPERM: "this user may not write there: choose a folder you own",
    errno.ENOENT: "the folder does not exist: create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "there is a folder of that name: choose another name",
}


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, line ends untouched, replacing what was there in one step.

    The text goes to a hidden file in the same folder, is flushed to the disk and renamed, so a reader, a
    crash or a full disk never meets half of it. A symbolic link is followed; an existing file's permission
    bits are kept. Raises PloughError naming the file when it cannot be written; nothing is left behind.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PloughError(
            f"cannot write {path}: the text holds half a character (a lone surrogate) at {error.start}",
            hint="the data it comes from was cut or decoded wrongly",
        ) from error
    target = Path(os.path.realpath(path))
    # Short and unlike any user file; the process id keeps ranks that share a folder apart.
    temporary = target.parent / f".plough-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        mode = _mode_of(target)
        try:
            _write_flushed(temporary, data, mode)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _flush_folder(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PloughError(f"cannot write {path}: {reason}", hint=_HINTS.get(error.errno or 0)) from error


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """`write_text_atomic` of a value made of dicts, lists, texts and numbers, indented for people."""
    write_text_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def staged_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden folder inside `folder` to write files into; they are moved out when the block succeeds.

    Each file is flushed and then renamed, replacing one of its name: what `folder` held stays whole until
    its successor is. When the block fails nothing of it is left. Folders made in it are merged likewise.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".plough-", suffix=".tmp", dir=target))
    try:
        yield staging
        for path in sorted(staging.rglob("*")):
            final = target / path.relative_to(staging)
            if path.is_dir():
                final.mkdir(exist_ok=True)
                continue
            with path.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(path, final)
        _flush_folder(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _mode_of(target: Path) -> int | None:
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return stat.S_IMODE(found.st_mode)


def _write_flushed(path: Path, data: bytes, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the user's umask
    with open(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system lets a folder be flushed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
