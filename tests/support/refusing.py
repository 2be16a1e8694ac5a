"""Refusals: work that must fail, and its expected words."""

from __future__ import annotations

import re
from collections.abc import Callable


def refuses(kind: type[Exception], text: str, work: Callable[[], object]) -> None:
    """Assert that `work` fails with an error of that kind that says `text`, or a match of it."""
    try:
        work()
    except kind as error:
        assert text in str(error) or re.search(text, str(error)), f"{text!r} is not in {error!r}"
    else:
        raise AssertionError(f"nothing was refused: {text}")
