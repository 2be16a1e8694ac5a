"""docs/METRICS.md names every metric that exists, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from test_metrics import busy

from oneflow.core.metrics_page import make_registry

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "METRICS.md").read_text()
ROW = re.compile(r"^\| `(oneflow_\w+)` \| ([CGH]) \|([^|]*)\|", re.MULTILINE)
TYPES = {"C": "counter", "G": "gauge", "H": "histogram"}


def existing() -> dict[str, tuple[str, set[str]]]:
    """Name as written in queries -> type and labels."""
    result = {}
    for family in make_registry(busy()).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {key for s in family.samples for key in s.labels} - {"le"}
        result[name] = family.type, labels
    return result


def documented() -> dict[str, tuple[str, set[str]]]:
    rows = ROW.findall(PAGE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {
        name: (TYPES[kind], {word.partition("=")[0] for word in labels.strip().split(", ") if word})
        for name, kind, labels in rows
    }


def test_the_page_names_every_metric_and_no_other() -> None:
    assert documented().keys() == existing().keys()


def test_types_and_labels_are_as_the_page_says() -> None:
    assert documented() == existing()


def test_queries_use_metrics_that_exist() -> None:
    queries = "\n".join(re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL))
    used = set(re.findall(r"oneflow_\w+", queries))
    known = existing()
    series = {
        f"{name}{suffix}"
        for name, (kind, _) in known.items()
        for suffix in (("_bucket", "_count", "_sum") if kind == "histogram" else ("",))
    }
    assert used and used <= series
