"""Kinds of option values."""

from __future__ import annotations

from collections.abc import Callable

import click

from oneflow.core.errors import ConfigError


class Kind(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """The base of kinds."""


class Quantity(Kind):
    """Numbers read by a parser of oneflow/services/quantities.py; other numbers stay."""

    def __init__(self, name: str, parser: str) -> None:
        self.name, self._parser = name, parser

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from oneflow.services import quantities

        try:
            parse: Callable[[str], float] = getattr(quantities, self._parser)
            return value if isinstance(value, (int, float)) else parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Pair(Kind):
    """key=value."""

    name = "key=value"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not key=value", param, ctx)
        return key, rest


class Ranks(Kind):
    """0, or 0,3, or 0-3,6."""

    name = "ranks"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            low, dash, high = part.strip().partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()):
                self.fail(f"{value!r} is not like 0, 0,3 or 0-3", param, ctx)
            last = int((high if dash else low)[:9])
            if max(len(low), len(high)) > 8 or not int(low) <= last < 1 << 20:
                self.fail(f"{part!r}: ranks must grow and be less than {1 << 20}", param, ctx)
            found.extend(range(int(low), last + 1))
        return tuple(dict.fromkeys(found))


DURATION = Quantity("duration", "parse_duration")
"""Seconds, from 90, 90s, 15m, 2h, 1h30m."""
MOMENT = Quantity("time", "parse_moment")
"""Seconds since the epoch, from 10m (before now) or 2026-11-21T06:11:19Z."""
SIZE = Quantity("size", "parse_size")
"""Bytes, from 1048576, 512M, 4GiB."""
PAIR, RANKS = Pair(), Ranks()
