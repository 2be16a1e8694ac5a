"""The stacks of a rank in the order in which they are of use: the user's threads first."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
_LIBRARIES = ("site-packages", "dist-packages")
_PYTHON = re.compile(r"python3(?:\.\d+)?|<frozen .*>")
PACKAGE = Path(__file__).parents[1]


def ordered(text: str) -> str:
    """Put threads that are in a user's code before the others, and name that code's lines on top.

    The text is as Python's faulthandler writes it; any other is returned as it is.
    """
    head, *threads = _blocks(text)
    users = [found for block in threads if (found := _user_line(block))]
    if not users:
        return text
    is_other = {id(block): not _user_line(block) for block in threads}
    blocks = sorted(threads, key=lambda block: is_other[id(block)])
    parts = ("\n".join(lines).strip("\n") for lines in (users, head, *blocks))
    return "\n\n".join(part for part in parts if part)


def _blocks(text: str) -> list[list[str]]:
    """Return the lines before the first thread, then those of each thread."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            found.append([])
        found[-1].append(line)
    return found


def _user_line(block: list[str]) -> str:
    """Return where a thread is in code that is neither ours nor a library's; "" if it is not."""
    frames = [found for line in block if (found := _FRAME.fullmatch(line))]
    of_user = [frame for frame in frames if not _is_library(frame["file"])]
    if not of_user:
        return ""
    innermost = of_user[0]
    return f"at {innermost['file']}:{innermost['line']}, in {innermost['name']}"


def _is_library(file: str) -> bool:
    """Whether a file, of any host, is of Python, of an installed package, or ours."""
    parts = PurePath(file).parts
    if any(part in _LIBRARIES or _PYTHON.fullmatch(part) for part in parts[:-1]):
        return True
    if _PYTHON.fullmatch(file) or "oneflow" not in parts:
        return file.startswith("<")
    last = len(parts) - parts[::-1].index("oneflow")
    return (PACKAGE / PurePath(*parts[last:])).is_file()
