"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from oneflow.cluster.sizes import parse_size, show_size
from oneflow.core.errors import ConfigError


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
