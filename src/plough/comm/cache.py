"""Where compiled code is kept: found whole or not at all, built by one process while the others wait.

Code from this folder is loaded into the user's processes, so a folder that others can write is refused.
Knows nothing of compilers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from plough.contract import Env
from plough.errors import BuildError

__all__ = ["Cache", "Removed", "find_cache"]

PATIENCE_S = 2.0
"""How long one waits for another process before saying so."""
DEAD_S = 24 * 3600.0
"""Age from which another host's unfinished build is taken to be dead."""
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
LOCK = "lock"
ELSEWHERE = f"set {Env.PLOUGH_CACHE_DIR} to a folder of your own, on a disk with 100 MB free"


@dataclass(frozen=True)
class Removed:
    """What cleaning took away, or would."""

    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Cache:
    """`root`/ccl/KEY/ holds one finished build each. `mode`: of the folders that are made."""

    root: Path
    mode: int = 0o700

    @property
    def builds(self) -> Path:
        return self.root / "ccl"

    def log(self, key: str) -> Path:
        """Where the output of a failed build is."""
        return self.builds / f"{key}.log"

    def look(self, key: str, file: str) -> Path | None:
        """The finished file, or None. Raises BuildError if somebody else could have put it there."""
        path = self.builds / key / file
        with self._told():
            if not path.is_file():
                return None
            for folder in (self.root, self.builds, path.parent):
                _refuse_unsafe(folder)
        return path

    def look_for_any(self, prefix: str, file: str) -> Path | None:
        """The newest finished file whose key begins so, whichever compiler made it."""
        with self._told():
            found = [path for path in self.builds.glob(f"{prefix}-*/{file}") if path.is_file()]
            found.sort(key=lambda path: path.stat().st_mtime_ns)
        return self.look(found[-1].parent.name, file) if found else None

    @contextlib.contextmanager
    def locked(self, what: str, say: Callable[[str], None]) -> Iterator[bool]:
        """Alone with the cache, as far as its file system knows locks; yields whether one had to wait.

        The kernel lets go of the lock when its holder dies. Makes the folders.
        """
        with self._told():
            for folder in (self.root, self.builds):
                folder.mkdir(mode=self.mode, parents=True, exist_ok=True)
                _refuse_unsafe(folder)
            descriptor = os.open(self.builds / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self._told():
                waited = _wait_for(descriptor, what, say)
                holder = f"process {os.getpid()} on {socket.gethostname()}".encode()
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, holder, 0)
            yield waited
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder to build in, gone afterwards. Call it with the lock held: those of the dead go too."""
        with self._told():
            for path in self._unfinished():
                shutil.rmtree(path, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f".build-{_host()}-", dir=self.builds))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, key: str, workspace: Path, library: Path, texts: Mapping[str, str]) -> None:
        """Put the library and the texts under the key, whole and at once, replacing what was there."""
        with self._told():
            ready = workspace / "ready"
            ready.mkdir(mode=self.mode)
            os.rename(library, ready / library.name)
            for name, text in texts.items():
                (ready / name).write_text(text, encoding="utf-8", errors="replace")
            for path in ready.iterdir():
                os.chmod(path, path.stat().st_mode & self.mode)  # whatever the umask
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            final = self.builds / key
            with contextlib.suppress(FileNotFoundError):
                os.rename(final, workspace / "replaced")
            try:
                os.rename(ready, final)
            except OSError as error:
                # Where there are no locks another may have come first with the same thing.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            self.log(key).unlink(missing_ok=True)

    def write_log(self, key: str, text: str) -> Path:
        """Keep the log of a failure; its first line is what `failure` gives back."""
        with self._told():
            self.log(key).write_text(text, encoding="utf-8", errors="replace")
        return self.log(key)

    def failure(self, key: str) -> tuple[int, str] | None:
        """When the last build under this key failed, and the log's first line."""
        try:
            with self.log(key).open(encoding="utf-8", errors="replace") as file:
                return os.fstat(file.fileno()).st_mtime_ns, file.readline().strip()
        except OSError:
            return None

    def clean(self, keep: set[str], *, really: bool = True) -> list[Removed]:
        """Remove all builds, logs and leftovers but the builds named. Call it with the lock held."""
        removed = []
        with self._told():
            if not self.builds.is_dir():
                return []
            _refuse_unsafe(self.builds)
            unfinished = self._unfinished()
            for path in sorted(self.builds.iterdir()):
                ours = path in unfinished or re.fullmatch(r"[0-9a-f]+-[0-9a-f]+(\.log)?", path.name)
                if path.name in keep or not ours:
                    continue
                removed.append(Removed(path.name, _size(path)))
                if really and path.is_dir():
                    shutil.rmtree(path)
                elif really:
                    path.unlink()
        return removed

    def _unfinished(self) -> list[Path]:
        """Folders whose builder is gone: of this host, where a living one would hold the lock, or old."""
        old = time.time() - DEAD_S
        return [
            path
            for path in self.builds.glob(".build-*")
            if path.name.startswith(f".build-{_host()}-") or path.stat().st_mtime < old
        ]

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Operating system errors as ours, naming the folder."""
        try:
            yield
        except OSError as error:
            raise BuildError(
                f"{self.root}, where compiled code is kept, cannot be used: {error.strerror or error}",
                hint=ELSEWHERE,
            ) from error


def find_cache(environment: Mapping[str, str]) -> Cache:
    """$PLOUGH_CACHE_DIR, which others may read (an image's user is not its builder), else the user's own."""
    if named := environment.get(Env.PLOUGH_CACHE_DIR):
        return Cache(root=Path(os.path.abspath(named)), mode=0o755)
    base = Path(environment.get(Env.XDG_CACHE_HOME) or "")
    if not base.is_absolute():  # as its specification wants it
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise BuildError("there is no home folder to keep compiled code in", hint=ELSEWHERE) from error
    return Cache(root=base / "plough")


def _refuse_unsafe(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise BuildError(
            f"{folder} belongs to another user (uid {found.st_uid}): code from it is not loaded",
            hint=ELSEWHERE,
        )
    if found.st_mode & 0o022:
        raise BuildError(
            f"{folder} can be written by other users: code from it is not loaded",
            hint=f"`chmod go-w {folder}` if it is yours alone, or {ELSEWHERE}",
        )


def _wait_for(descriptor: int, what: str, say: Callable[[str], None]) -> bool:
    started, waited = time.monotonic(), False
    while time.monotonic() - started < PATIENCE_S:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except OSError as error:
            if error.errno in NO_LOCKS:
                return waited
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        waited = True
        time.sleep(0.05)
    holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
    say(f"waiting for {holder}, which is building {what} ...")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return True


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())


def _size(path: Path) -> int:
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(found.lstat().st_size for found in paths if not found.is_dir())
