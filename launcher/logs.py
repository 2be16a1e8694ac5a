"""Ranks' output on the console: the rank before each line, nothing that could harm a terminal.

A thread of its own reads the pipes, so that a slow console never delays the look at the ranks.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import socket
import string
import threading
import time
from dataclasses import dataclass, field
from io import FileIO

PARTIAL_S = 0.3  # text without a line end is shown after so long
PIECE_CHARS = 16 << 10  # a longer line goes out in pieces, so that memory stays bounded
READ_NBYTES = 64 << 10
DRAIN_S = 2.0

# Colours may pass; every other control character is shown as text. \r and \n end a line.
_CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_SPELLED = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"
}
_LINE_END = re.compile(r"\r\n|\n|\r(?!$)")


def escape(text: str) -> str:
    """`text` with its control characters spelled out."""
    if not _CONTROL.search(text):
        return text
    parts = _COLOUR.split(text)  # every second one is a colour
    parts[::2] = [part.translate(_SPELLED) for part in parts[::2]]
    return "".join(parts)


def line_prefix(template: str, rank: int, local_rank: int) -> str:
    """The template with ${hostname}, ${rank} and ${local_rank} filled in; other words stay as
    they are.
    """
    known = {"hostname": socket.gethostname(), "rank": rank, "local_rank": local_rank}
    return string.Template(template).safe_substitute(known)


class LineSplitter:
    """Bytes in, lines out: (text, whether the line ends here). Invalid UTF-8 is shown as \\xNN."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        """Return the lines that `data` completes: whole ones, and pieces of an overlong one."""
        parts = _LINE_END.split(self._held + self._decoder.decode(data))
        self._held = parts.pop()
        out = [(escape(part), True) for part in parts]
        while len(self._held) >= PIECE_CHARS:
            out.append((escape(self._held[:PIECE_CHARS]), False))
            self._held = self._held[PIECE_CHARS:]
        return out

    def flush(self, at_end: bool = False) -> list[tuple[str, bool]]:
        """Return the text that is held back, as an unfinished line."""
        if at_end:
            self._held += self._decoder.decode(b"", final=True)
        held, self._held = self._held, ""
        return [(escape(held.rstrip("\r")), held.endswith("\r"))] if held else []


class Console:
    """One output of the launcher, shared by its ranks' streams.

    A line broken by another rank's starts anew.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._open: str | None = None  # prefix whose unfinished line the cursor is on
        self._broken = False

    def write(self, prefix: str, text: str, ends: bool) -> None:
        """Shows `text` of the stream with that prefix."""
        start = "" if self._open == prefix else prefix
        if self._open is not None and self._open != prefix:
            start = "\n" + prefix
        self._open = None if ends else prefix
        self._put(start + text + ("\n" if ends else ""))

    def close(self) -> None:
        """Ends an unfinished line."""
        if self._open is not None:
            self._put("\n")
            self._open = None

    def _put(self, text: str) -> None:
        if self._broken:
            return
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # the reader left; the ranks must not notice
            self._broken = True


@dataclass
class _Stream:
    prefix: str
    console: Console
    copy: FileIO | None = None  # every byte goes there as well
    splitter: LineSplitter = field(default_factory=LineSplitter)
    held_since: float | None = None


class Pump:
    """Copies ranks' pipes to the console until all have ended, or until `finish` has waited long
    enough.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2) -> None:
        self._consoles = (Console(stdout), Console(stderr))
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oneflow-output", daemon=True)

    def add(self, descriptor: int, number: int, prefix: str, copy: FileIO | None = None) -> None:
        """Take over the reading end of a rank's pipe. Only before `start`.

        number: 1 for stdout, 2 for stderr.  copy: a file for its bytes, which the pump closes.
        """
        os.set_blocking(descriptor, False)
        stream = _Stream(prefix, self._consoles[number - 1], copy)
        self._selector.register(descriptor, selectors.EVENT_READ, stream)

    def start(self) -> None:
        """Does nothing if there is nothing to copy."""
        if self._selector.get_map():
            self._thread.start()

    def finish(self) -> None:
        """Wait for the last output of ranks that ended; a pipe somebody still holds is dropped."""
        if self._thread.ident is None:  # nothing was piped
            self._selector.close()
            return
        self._thread.join(DRAIN_S)
        self._stopping.set()
        self._thread.join(DRAIN_S)
        if not self._thread.is_alive():
            self._selector.close()

    def _run(self) -> None:
        while self._selector.get_map() and not self._stopping.is_set():
            for key, _ in self._selector.select(PARTIAL_S / 2):
                self._read(key.fd, key.data)
            self._show_partial_lines(time.monotonic())
        for key in list(self._selector.get_map().values()):
            self._close(key.fd, key.data)
        for console in self._consoles:
            console.close()

    def _read(self, descriptor: int, stream: _Stream) -> None:
        try:
            data = os.read(descriptor, READ_NBYTES)
        except BlockingIOError:
            return
        if not data:
            self._close(descriptor, stream)
            return
        self._copy(data, stream)
        for text, ends in stream.splitter.feed(data):
            stream.console.write(stream.prefix, text, ends)
        stream.held_since = time.monotonic()

    def _copy(self, data: bytes, stream: _Stream) -> None:
        """Write to the file; a full disk ends the copy, not the job, and is told once."""
        left = memoryview(data)
        while left and stream.copy is not None:
            try:
                left = left[stream.copy.write(left) :]
            except OSError as error:
                name, stream.copy = stream.copy.name, None
                text = f"oneflow: the copy in {str(name)!r} ends here: {error.strerror}"
                self._consoles[1].write("", text, True)

    def _show_partial_lines(self, now: float) -> None:
        for key in self._selector.get_map().values():
            stream: _Stream = key.data
            if stream.held_since is not None and now - stream.held_since >= PARTIAL_S:
                stream.held_since = None
                for text, ends in stream.splitter.flush():
                    stream.console.write(stream.prefix, text, ends)

    def _close(self, descriptor: int, stream: _Stream) -> None:
        for text, ends in stream.splitter.flush(at_end=True):
            stream.console.write(stream.prefix, text, ends)
        if stream.copy is not None:
            stream.copy.close()
        self._selector.unregister(descriptor)
        os.close(descriptor)
