"""The files of the web page: small, from here alone, and readable in light and dark."""

from __future__ import annotations

import re
from itertools import product

import pytest

from oneflow.scheduler.cluster.page.files import FOLDER, TYPES, files

MAX_NBYTES = 150_000  # of all that a browser loads
INKS = ("text", "soft", "good", "bad", "busy", "wait", "other")
GROUNDS = ("bg", "chosen")
AA = 4.5  # WCAG 2.2, 1.4.3


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def palettes() -> dict[str, dict[str, str]]:
    """The variables of the style, by scheme."""
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "page.css").read_text(), re.DOTALL)
    found = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in blocks]
    return dict(zip(("light", "dark"), found, strict=True))


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_colour_can_be_read_on_each_ground(scheme: str) -> None:
    colours = palettes()[scheme]
    pairs = {
        f"{ink} on {ground}": contrast(colours[ink], colours[ground])
        for ink, ground in product(INKS, GROUNDS)
    }
    assert {pair: ratio for pair, ratio in pairs.items() if ratio < AA} == {}


def test_colours_stand_in_the_palettes_alone() -> None:
    style = (FOLDER / "page.css").read_text()
    outside = re.sub(r":root \{.*?\}", "", style, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}\b(?![^{]*\{)|rgb|hsl", outside) == []


def test_the_page_is_small_and_whole() -> None:
    found = files()
    assert sum(len(answer.body) for path, answer in found.items() if path != "/ui") <= MAX_NBYTES
    html = found["/"].body.decode()
    named = set(re.findall(r'(?:src|href)="(/ui/[^"]+)"', html))
    for path in FOLDER.glob("*.js"):
        named |= {f"/ui/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
    assert named == found.keys() - {"/", "/ui"}  # nothing is missing, and nothing is left over


def test_nothing_comes_from_elsewhere_or_runs_inline() -> None:
    for answer in files().values():
        text, headers = answer.body.decode(), answer.headers or {}
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert answer.content_type in TYPES.values()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not re.search(r"<script>|<style>| style=| on\w+=\"|innerHTML|eval\(", text)
