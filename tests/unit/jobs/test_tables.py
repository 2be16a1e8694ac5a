"""Tables of embeddings in jobs: descriptions that anyone may have written, and their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow.graph.tracing import trace_build
from oneflow.jobs.tables import Tables, check_folders, prepare_tables, tables_of
from tests.unit.one_embedding.making import embedding, one

IDS = [[1, 2], [3, 4]]


class Look(flow.nn.Graph):
    def __init__(self, *modules: Any) -> None:
        super().__init__()
        self.modules_ = flow.nn.ModuleList(modules)

    def build(self, ids: Any) -> Any:
        return sum(module(ids).sum() for module in self.modules_)


def graph_of(*modules: Any) -> Any:
    """The traced graph of a look-up in each."""
    trace, _ = trace_build((g := Look(*modules))._spec, g.build, ((flow.tensor(IDS),), {}))
    return trace.graph


def in_folder(path: Path, **given: Any) -> Any:
    return embedding(store_options=one.make_device_mem_store_options(str(path), 100), **given)


def describe(graph: Any, **changes: Any) -> None:
    """Change the graph's description of its tables."""
    for node in graph:
        if "table" in node.attrs:
            told = {**json.loads(node.attrs["table"]), **changes}
            told = {name: value for name, value in told.items() if value is not None}
            node.attrs = {**node.attrs, "table": json.dumps(told)}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"name": 7},
        {"store": None},
        {"store": {"kv_store": {"persistent_table": {"path": [7]}}}},
        {"store": "folder"},
    ],
)
def test_damaged_descriptions_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    graph = graph_of(in_folder(tmp_path, size_factor=1))
    describe(graph, **changes)
    with pytest.raises(flow.jobs.JobFileError, match="the description of an embedding is damaged"):
        tables_of(graph)


@pytest.mark.parametrize("changes", [{"columns": None}, {"columns": 3}, {"line_size": "x"}])
def test_tables_that_cannot_be_opened_name_their_embedding(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    graph = graph_of(in_folder(tmp_path, size_factor=1, name="odd"))
    describe(graph, **changes)
    for node in graph:
        for value in node.outputs:
            value.sbp = (flow.sbp.split(0),) if node.op == "variable" else None
    with pytest.raises(flow.jobs.JobFileError, match="embedding 'odd' is damaged"):
        Tables.of(graph, 0)


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    graph = graph_of(in_folder(tmp_path / "a"), in_folder(tmp_path / "b"))
    describe(graph, name="same")
    with pytest.raises(flow.jobs.JobFileError, match="names of their own, not"):
        tables_of(graph)


def test_folders_are_compared_with_links_followed(tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    (allowed / "link").symlink_to(outside)
    check_folders(tables_of(graph_of(in_folder(allowed / "rows"))).values(), [allowed])
    for path in (outside, allowed / "link" / "rows", allowed / ".." / "outside"):
        with pytest.raises(flow.jobs.JobFileError, match="is in no folder that jobs may use"):
            check_folders(tables_of(graph_of(in_folder(path))).values(), [allowed])


def test_an_export_says_what_a_job_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = embedding(store_options=one.make_device_mem_store_options("rows", 100))
    module(flow.tensor(IDS))
    graph = graph_of(module)
    prepare_tables(graph, is_training=False)
    (told,) = tables_of(graph).values()
    kept = told["store"]["kv_store"]["persistent_table"]
    assert (kept["path"], kept["read_only"]) == (str(tmp_path / "rows"), True)
    assert module.one_embedding.rows.store.snapshot_names() == [told["snapshot"]]
