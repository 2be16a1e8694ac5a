"""Times and sizes as people write them."""

from __future__ import annotations

import pytest

from oneflow.core.errors import ConfigError
from oneflow.services.quantities import (
    parse_duration,
    parse_moment,
    parse_size,
    show_duration,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h30", 3630),  # a number without a unit is seconds, also at the end
        ("1d", 86400),
        ("250ms", 0.25),
        (3, 3.0),
        (0.5, 0.5),
        ("0", 0),
    ],
)
def test_parsed(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "-1", "1 h", "2x", "nan", True, float("inf"), -1])
def test_refused(text: str | float) -> None:
    with pytest.raises(ConfigError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (61, "1m01s"), (3700, "1h01m"), (90000, "1d01h"), (-5, "0s")],
)
def test_shown(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 99_400.0),
        ("0", 100_000.0),
        ("1970-01-02T00:00:00Z", 86_400.0),
        ("1970-01-02T01:00:00+01:00", 86_400.0),
        ("1970-01-02 00:00:00.500+00:00", 86_400.5),
    ],
)
def test_moments_are_read(text: str, seconds: float) -> None:
    assert parse_moment(text, now=lambda: 100_000.0) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-21T25:00:00Z", "-5m"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="2026-11-21"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), (7, 7), ("1024", 1024), ("512M", 512 << 20), ("4GiB", 4 << 30), ("1.5kb", 1536)],
)
def test_sizes_are_read(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "4X", "GiB", "-1", -1, "1e3", "9" * 30, True])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(ConfigError, match="memory"):
        parse_size(text, "memory")


def test_shown_sizes_are_exact() -> None:
    for nbytes in (0, 1000, 1024, 1536 << 20, 64 << 30):
        assert parse_size(show_size(nbytes)) == nbytes
    assert show_size(1536 << 20) == "1536MiB"
