"""Flags made of the table of settings, so that both always say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from oneflow.cli.types import DURATION, SIZE
from oneflow.cluster.settings import AT_LEAST_ONE, BY_NAME, LIMITS, WORDS, Key

F = TypeVar("F", bound=Callable[..., Any])
KINDS: Mapping[str, Any] = {
    "duration": DURATION,
    "size": SIZE,
    "count": click.IntRange(0),
    "number": click.FloatRange(0),
}
DATA_ROOTS = click.option(
    "--data-root",
    "data_roots",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(file_okay=False, resolve_path=True),
    help="Graph jobs may read its files, and save there.",
)
ON_END = click.option(
    "--on-end",
    metavar="COMMAND",
    help="Run for each job that has ended, with its record as JSON on standard input; by no shell.",
)


def limit_options(*sections: str) -> Callable[[F], F]:
    """Flags of all limits in these sections, and of the log."""
    names = [name for name in LIMITS if name.partition(".")[0] in sections]
    return _options([*names, "log.level", "log.format"])


def _options(names: Iterable[str]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for name in reversed(list(names)):
            command = _option(BY_NAME[name])(command)
        return command

    return decorate


def _option(key: Key) -> Callable[[F], F]:
    section, _, name = key.name.partition(".")
    flag = f"--{section}-{name}" if section == "log" else f"--{name}"
    kind = click.Choice(WORDS[key.name]) if key.name in WORDS else KINDS[key.kind]
    if key.kind == "count" and key.name in AT_LEAST_ONE:
        kind = click.IntRange(1)
    if key.name == "log.level":
        kind = click.Choice(WORDS[key.name], case_sensitive=False)
    what = key.text[0].upper() + key.text[1:] + "."
    return click.option(flag.replace("_", "-"), _parameter(key.name), type=kind, help=what)


def _parameter(name: str) -> str:
    return name.replace(".", "__")


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `limit_options` out of `flags`, by key name."""
    names = [name for name in flags if "__" in name]
    return {name.replace("__", "."): flags.pop(name) for name in names}
