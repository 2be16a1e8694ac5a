"""TOML files of ours, read strictly: an unknown key is an error that names a better one."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oneflow.core.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

MAX_FILE_NBYTES = 1 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError that names the file, and the line of a mistake."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_NBYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_FILE_NBYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_NBYTES >> 20} MiB")
    try:
        found: dict[str, Any] = tomllib.loads(data.decode())
    except ValueError as error:  # of TOML and of UTF-8 alike
        raise ConfigError(f"{path}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: lists or tables are nested too deep") from None
    return found


def check_keys(found: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises ConfigError for the first key that is not known."""
    names = list(known)
    for key in found:
        if key not in names:
            raise ConfigError(f"{where}: unknown key {key!r}{suggestion(key, names)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or a list of the words there are."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(names)}"
