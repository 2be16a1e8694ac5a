"""Rules for what of a working directory is not sent: a file `.onefignore` in it, written like
.gitignore.

`#` begins a comment and `!` takes back what a line before it left out. A pattern with a `/` before
its end is meant from the folder on, any other at every depth; one that ends with `/` means folders
only. `*` and `?` stop at a `/`, `**` does not. What lies in a folder that is left out is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = ".onefignore"
MAX_NBYTES = 64 << 10
MAX_RULES = 1000
MAX_STARS = 6  # of one pattern: with many, comparing a long name could take for ever


@dataclass(frozen=True)
class Rule:
    """pattern: of the whole path below the folder, with / between."""

    pattern: re.Pattern[str]
    folders_only: bool
    takes_back: bool


DOT_NAMES = Rule(re.compile(r"(?:.*/)?\.[^/]*", re.DOTALL), folders_only=False, takes_back=False)
"""The rule for what begins with a dot, before those of the file."""


def read_rules(folder: Path) -> tuple[Rule, ...]:
    """() without a file. Raises ValueError with what is wrong with a line, OSError."""
    try:
        with open(folder / FILE, "rb") as file:
            data = file.read(MAX_NBYTES + 1)
    except FileNotFoundError:
        return ()
    if len(data) > MAX_NBYTES:
        raise ValueError(f"{FILE} is larger than {MAX_NBYTES >> 10} KiB")
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    rules = [rule for number, line in enumerate(lines, 1) if (rule := _rule(line, number))]
    if len(rules) > MAX_RULES:
        raise ValueError(f"{FILE} has more than {MAX_RULES} patterns")
    return tuple(rules)


def is_left_out(rules: Sequence[Rule], path: str, is_folder: bool) -> bool:
    """Is a path left out?

    path: below the folder, with / between. The last rule that fits decides.
    """
    for rule in reversed(rules):
        if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path):
            return not rule.takes_back
    return False


def _rule(line: str, number: int) -> Rule | None:
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    takes_back = text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")  # \# and \! are names that begin so
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if text.count("*") > MAX_STARS or not text.strip("/"):
        raise ValueError(f"{FILE}, line {number}: {line.strip()[:80]!r} is no pattern")
    is_anchored = "/" in text
    start = "" if is_anchored else "(?:.*/)?"
    return Rule(re.compile(start + _regex(text.lstrip("/")), re.DOTALL), folders_only, takes_back)


def _regex(glob: str) -> str:
    found, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif glob.startswith("**", at):
            found, at = found + ".*", at + 2
        elif glob[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif glob[at] == "?":
            found, at = found + "[^/]", at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end]
            negated = inside[:1] in ("!", "^")
            words = re.escape(inside[1:] if negated else inside).replace(r"\-", "-")
            found, at = found + f"[{'^/' if negated else ''}{words}]", end + 1
        else:
            found, at = found + re.escape(glob[at]), at + 1
    return found
