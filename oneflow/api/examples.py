"""Examples of public functions, each a call and its result: examples.txt, as in a doctest.

`surfaces` puts them at the end of docstrings, where `help` and the site's reference find them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

NAMED = re.compile(r">>> ((?:flow|F|nn)\b[.\w]*)")


@cache
def examples() -> dict[tuple[str, str], str]:
    """Return the text of the example of each (namespace, name), as rows spell namespaces."""
    text = Path(__file__).with_suffix(".txt").read_text()
    found = {}
    for part in re.split(r"^(?=>>> )", text, flags=re.M)[1:]:
        match = NAMED.match(part)
        assert match is not None, part
        space, _, name = match[1].rpartition(".")
        found[space.removeprefix("flow.") if space != "flow" else space, name] = part.rstrip()
    return found


def example_of(spaces: tuple[str, ...], names: tuple[str, ...]) -> str:
    """Return the example of a function that is found so; "" if there is none."""
    known = examples()
    return next((known[key] for s in spaces for n in names if (key := (s, n)) in known), "")
