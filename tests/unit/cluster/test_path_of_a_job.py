"""The map of docs/CLUSTER.md from a submission to the first step names files and functions that are
there.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "CLUSTER.md").read_text()
PLACE = re.compile(r"`([\w/]+\.py)`((?:,? `\w+`)*)")


def test_each_function_of_the_map_is_in_the_file_it_is_said_to_be_in() -> None:
    rows = PAGE.partition("## From `job submit` to the first step")[2]
    places = [(path, re.findall(r"`(\w+)`", names)) for path, names in PLACE.findall(rows)]
    assert len(places) > 15
    for path, names in places:
        text = (ROOT / path).read_text()
        for name in names:
            assert re.search(rf"def {name}\(", text), f"{path}: there is no {name}"
