"""What a rank writes, as lines and bars, and how its relay records its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.contract import Env
from plough.launchers import relay
from plough.launchers.records import RankRecord, read_records
from plough.launchers.relay import LineSplitter, Screen

Pieces = list[tuple[str, bool]]


def line(text: str) -> tuple[str, bool]:
    return text, False


def bar(text: str) -> tuple[str, bool]:
    return text, True


# chunks -> pieces, with the last chunk final
SPLITS: dict[str, tuple[list[bytes], Pieces]] = {
    "nothing": ([b""], []),
    "a line": ([b"one\n"], [line("one")]),
    "two lines in three chunks": ([b"on", b"e\ntw", b"o\n"], [line("one"), line("two")]),
    "an empty line": ([b"\n\n"], [line(""), line("")]),
    "no newline at the end": ([b"one\ntwo"], [line("one"), line("two")]),
    "CRLF": ([b"one\r\ntwo\r\n"], [line("one"), line("two")]),
    "CRLF cut in half": ([b"one\r", b"\ntwo\r", b"\n"], [line("one"), line("two")]),
    "an empty CRLF line": ([b"\r\n"], [line("")]),
    "a bar": ([b"\r 1%\r 2%\r 3%\n"], [bar(" 1%"), bar(" 2%"), line(" 3%")]),
    "a bar without an end": ([b"\r 1%\r 2%"], [bar(" 1%"), line(" 2%")]),
    "a return at the very end": ([b" 1%\r", b""], [bar(" 1%")]),
    "returns alone": ([b"\r\r\r"], []),
    "UTF-8 cut in a character": ([b"n\xc3", b"\xa9e\n"], [line("née")]),
    "four bytes, one by one": ([b"\xf0", b"\x9f", b"\x9a", b"\x9c\n"], [line("🚜")]),
    "not UTF-8": ([b"a\xffb\n"], [line("a�b")]),
    "half a character at the end": ([b"a\xc3"], [line("a�")]),
    "separators that are no line ends": (["a\x0bb\u2028c\n".encode()], [line("a\x0bb\u2028c")]),
}


@pytest.mark.parametrize("case", sorted(SPLITS))
def test_split(case: str) -> None:
    chunks, expected = SPLITS[case]
    splitter = LineSplitter()
    found = [piece for chunk in chunks[:-1] for piece in splitter.feed(chunk)]
    assert found + splitter.feed(chunks[-1], final=True) == expected
    assert splitter.pending == ""


def reference(data: bytes) -> Pieces:
    """The same from the whole text at once, by another road."""
    parts = re.split(r"(\r\n|\n|\r)", data.decode("utf-8", "replace"))
    pieces = [(text, end == "\r") for text, end in zip(parts[::2], parts[1::2], strict=False)]
    pieces = [(text, is_bar) for text, is_bar in pieces if text or not is_bar]
    return pieces + ([line(parts[-1])] if parts[-1] else [])


NOISY = st.lists(
    st.one_of(st.binary(max_size=6), st.sampled_from([b"\r", b"\n", b"\r\n", b"a", "né🚜".encode()])),
    max_size=12,
)


@given(chunks=NOISY)
def test_any_bytes_in_any_chunking_give_the_same_lines(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    splitter = LineSplitter()
    found = [piece for chunk in chunks for piece in splitter.feed(chunk)]
    assert found + splitter.feed(b"", final=True) == reference(data)
    assert LineSplitter().feed(data, final=True) == reference(data)


def test_what_is_pending_is_the_newest_state() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"done\n\r 40%") == [line("done")]
    assert splitter.pending == " 40%"


class Shown:
    """A Screen that writes into a pipe, and a clock that the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.read_fd, self.fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        monkeypatch.setattr(relay.time, "monotonic", lambda: self.now)

    def screen(self, *, live: bool = False, bars: bool = True) -> Screen:
        return Screen(self.fd, prefix="[0] ", live=live, bars=bars)

    @property
    def text(self) -> str:
        try:
            return os.read(self.read_fd, 65536).decode()
        except BlockingIOError:
            return ""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    it = Shown(monkeypatch)
    yield it
    os.close(it.read_fd)
    os.close(it.fd)


def test_lines_carry_the_rank(shown: Shown) -> None:
    screen = shown.screen()
    assert screen.feed(b"one\ntw") == ["one"]
    assert shown.text == "[0] one\n"
    assert screen.feed(b"o", final=True) == ["two"]
    assert shown.text == "[0] two\n"


def test_a_bar_in_a_pipe_is_a_line_now_and_then(shown: Shown) -> None:
    screen = shown.screen()
    assert screen.feed(b"\r 10%|#   | 1/10") == []
    assert shown.text == ""
    shown.now += relay.BAR_EVERY
    screen.feed(b"\r 20%|##  | 2/10")
    screen.feed(b"\r 30%|### | 3/10")
    assert shown.text == "[0] 20%|##  | 2/10\n"
    shown.now += relay.BAR_EVERY
    screen.feed(b"\rdownloading, no bar")
    assert shown.text == ""
    screen.feed(b"\r100%|####| 10/10\n")
    assert shown.text == "[0] 100%|####| 10/10\n"


def test_a_bar_on_a_terminal_redraws_itself(shown: Shown) -> None:
    screen = shown.screen(live=True)
    screen.feed(b"\r 10%|#   |")
    screen.feed(b"\r 20%|##  |")
    assert shown.text == "\r\x1b[K[0]  10%|#   |\r\x1b[K[0]  20%|##  |"
    screen.feed(b"\nloss 1.0\n")
    assert shown.text == "\r\x1b[K[0]  20%|##  |\n\r\x1b[K[0] loss 1.0\n"


@pytest.mark.parametrize("live", [False, True])
def test_bars_of_other_ranks_are_not_shown(shown: Shown, live: bool) -> None:
    screen = shown.screen(live=live, bars=False)
    shown.now += relay.BAR_EVERY
    screen.feed(b"\r 10%|#   |\r 20%|##  |")
    assert shown.text == ""


def test_nobody_reads_any_more(shown: Shown) -> None:
    read_fd, fd = os.pipe()
    os.close(read_fd)
    screen = Screen(fd, prefix="", live=False, bars=True)
    assert screen.feed(b"still counted\n") == ["still counted"]
    os.close(fd)


# The relay itself, around a process that does as told.

RANK = """
import os, sys
from pathlib import Path
from plough.launchers.relay import watch_in_parent
job = Path(sys.argv[1])
watch_in_parent(job, 1, 2)
"""


def watched(job: Path, script: str) -> tuple[int, str, str, RankRecord]:
    """Exit code, stdout, stderr and record of rank 1, whose Python runs `script`."""
    done = subprocess.run(
        [sys.executable, "-c", RANK + script, str(job)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name != Env.PLOUGH_LIVE},
    )
    (record,) = read_records(job)
    return done.returncode, done.stdout, done.stderr, record


def test_a_rank_that_ends_well(tmp_path: Path) -> None:
    code, out, err, record = watched(tmp_path, "print('hello'); print('oops', file=sys.stderr)")
    assert (code, out, err) == (0, "[1] hello\n", "[1] oops\n")
    assert (record.rank, record.returncode, record.asked, record.error) == (1, 0, False, None)
    assert record.stderr == ("oops",)
    assert record.pid != record.relay_pid


def test_a_rank_that_fails_leaves_its_last_lines(tmp_path: Path) -> None:
    script = """
for i in range(50):
    print(i, file=sys.stderr)
(job / "error-1.txt").write_text("error: x")
sys.exit(3)
"""
    code, _, err, record = watched(tmp_path, script)
    assert (code, record.returncode, record.error) == (3, 3, "error: x")
    assert record.stderr == tuple(map(str, range(50 - relay.KEEP_LINES, 50)))
    assert len(err.splitlines()) == 50


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    code, _, _, record = watched(
        tmp_path, f"sys.stderr.write('last'); sys.stderr.flush(); os.kill(os.getpid(), {number:d})"
    )
    assert (code, record.returncode, record.asked) == (128 + number, -number, False)
    assert record.stderr == ("last",)
    assert record.ended is not None


def test_a_rank_that_was_told_to_stop(tmp_path: Path) -> None:
    code, _, _, record = watched(
        tmp_path, "import signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    )
    assert (code, record.returncode, record.asked) == (128 + signal.SIGTERM, -signal.SIGTERM, True)


def test_a_folder_that_is_gone_is_no_reason_to_lose_the_exit_code(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    script = """
import shutil, time
while not (job / "rank-1.json").exists():
    time.sleep(0.01)
shutil.rmtree(job)
print("on")
sys.exit(5)
"""
    done = subprocess.run(
        [sys.executable, "-c", RANK + script, str(job)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (5, "[1] on\n")
