"""Tables of OneEmbedding in jobs: where their rows may lie, and the snapshots beside checkpoints.

A graph names its tables by their descriptions, in which the folder of their rows stands, so a job
file needs nothing more: its export adds the snapshot that a job begins with, and that an inference
job only reads. The rows stay in that folder, beside which a checkpoint has but their snapshot's
name.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from oneflow.boxing.boxes import shard_box
from oneflow.core.dtype import float32
from oneflow.core.errors import OneFlowError, RowStoreError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.op import Box
from oneflow.jobs.description import JobFileError
from oneflow.kernels.open_tables import OpenTable, close_tables, open_table, opened
from oneflow.ops.one_embedding import BUCKETS

Told: TypeAlias = dict[str, Any]
"""The description of tables."""
_OPS = "one_embedding_"


def _nodes(graph: LogicalGraph) -> list[Node]:
    return [n for n in graph if n.op.startswith(_OPS) and "table" in n.attrs]


def is_shadow(value: Value) -> bool:
    """Whether a value stands for rows of tables (oneflow/ops/one_embedding.py)."""
    return any(_shadow_of(node) is value for node in value.users)


def _shadow_of(node: Node) -> Value | None:
    """The shadow that a node reads; None of those that work on ids alone, and of other ops."""
    if not node.op.startswith(_OPS) or not node.inputs:
        return None
    first = node.inputs[0]
    return first if first.type.shape == (BUCKETS,) and first.type.dtype is float32 else None


def tables_of(graph: LogicalGraph) -> dict[str, Told]:
    """The descriptions of a graph's tables by their text. Raises JobFileError for a text that is
    none.
    """
    found: dict[str, Told] = {}
    for node in _nodes(graph):
        text = str(node.attrs["table"])
        if text not in found:
            found[text] = _read(text)
    names = [told["name"] for told in found.values()]
    if len(set(names)) != len(names):
        raise JobFileError(f"embeddings of one graph need names of their own, not {sorted(names)}")
    return found


def _read(text: str) -> Told:
    try:
        told = json.loads(text)
        paths = told["store"]["kv_store"]["persistent_table"]["path"]
        listed = [paths] if isinstance(paths, str) else paths
        if not isinstance(told["name"], str) or not all(isinstance(p, str) for p in listed):
            raise TypeError("its name or its path is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise JobFileError(f"the description of an embedding is damaged: {error}") from None
    return dict(told)


def _paths(told: Told) -> list[str]:
    paths = told["store"]["kv_store"]["persistent_table"]["path"]
    return [paths] if isinstance(paths, str) else list(paths)


def check_folders(tables: Iterable[Told], folders: Sequence[Path]) -> None:
    """Raise JobFileError for rows outside of the folders that jobs may use on this host."""
    for told in tables:
        for path in _paths(told):
            real = Path(os.path.realpath(path))
            if not any(real.is_relative_to(folder.resolve()) for folder in folders):
                raise JobFileError(
                    f"embedding {told['name']!r}: {path} is in no folder that jobs may use on this "
                    "host; whoever runs `daemon run` or `cluster up` can allow it by --data-root "
                    "(or ONEFLOW_DATA_ROOTS)"
                )


# ---- exporting -----------------------------------------------------------------------------------


def prepare_tables(graph: LogicalGraph, *, is_training: bool) -> None:
    """Let a graph that is exported find its rows: those that are open here are saved, under a name
    that goes along. All ranks call it. Raises JobFileError for rows that no other process can find.
    """
    texts = {text: _for_job(text, told, is_training) for text, told in tables_of(graph).items()}
    for node in _nodes(graph):
        node.attrs = {**node.attrs, "table": texts[str(node.attrs["table"])]}


def _for_job(text: str, told: Told, is_training: bool) -> str:
    name, kept = told["name"], told["store"]["kv_store"]["persistent_table"]
    if not all(_paths(told)):
        raise JobFileError(
            f"embedding {name!r} of a job needs a persistent_path in its store options, for its "
            "rows and their snapshots"
        )
    paths = [os.path.abspath(path) for path in _paths(told)]
    kept["path"] = paths[0] if isinstance(kept["path"], str) else paths
    snapshot = _saved(name, text)
    if snapshot:
        told["snapshot"] = snapshot
    if not is_training:
        kept["read_only"] = True
        if "snapshot" not in told:
            warnings.warn(
                f"embedding {name!r} has no rows here, so the inference job will have first values "
                "only: load a snapshot before the export",
                stacklevel=5,
            )
    return json.dumps(told, sort_keys=True)


def _saved(name: str, text: str) -> str:
    """Save the rows that are open here; "" if none are."""
    open_here = opened(text)
    if not open_here:
        return ""
    store = open_here[0].store
    if store.options.is_read_only:
        return store.snapshot
    from oneflow.one_embedding.embedding import handler_of  # not where jobs run

    handler = handler_of(name)
    snapshot = f"export-{handler.moment_ns()}"
    handler.save_snapshot(snapshot)
    return snapshot


# ---- running -------------------------------------------------------------------------------------


class Tables:
    """The rows of a job on one rank, by the names of their embeddings. All ranks call alike."""

    def __init__(self, open_here: Mapping[str, OpenTable], names: Iterable[str]) -> None:
        self._open, self.names = dict(open_here), tuple(names)

    @classmethod
    def of(cls, graph: LogicalGraph, rank: int) -> Tables:
        """Open the rows that a rank has of a plan's graph. Raises RowStoreError, ArgumentError."""
        told, found = tables_of(graph), dict[str, OpenTable]()
        for node in _nodes(graph):
            text, shadow = str(node.attrs["table"]), _shadow_of(node)
            name = told[text]["name"]
            if rank not in node.placement or name in found or not shadow or not shadow.sbp:
                continue
            box = shard_box(shadow.type.shape, shadow.sbp, node.placement, rank)
            found[name] = _opened(name, text, box)
        return cls(found, sorted(each["name"] for each in told.values()))

    def __bool__(self) -> bool:
        return bool(self.names)

    def save(self, snapshot: str, moment_ns: int) -> None:
        """Keep the rows as they are. moment_ns: the same on all ranks. Raises RowStoreError."""
        for table in self._open.values():
            table.store.save_snapshot(snapshot, moment_ns)

    def load(self, snapshots: Mapping[str, str]) -> None:
        """Replace the rows by those of snapshots, named for each embedding."""
        if set(snapshots) != set(self.names):
            raise RowStoreError(
                f"rows of embeddings {sorted(snapshots)} are saved, the job has {list(self.names)}"
            )
        for name, table in self._open.items():
            table.load_snapshot(snapshots[name])

    def remove(self, is_old: Callable[[str], bool]) -> None:
        """Remove snapshots of this rank by their names."""
        for table in self._open.values():
            for name in filter(is_old, table.store.snapshot_names()):
                table.store.remove_snapshot(name)

    def close(self) -> None:
        """Let other runs have the rows; those in no snapshot are lost."""
        for table in self._open.values():
            close_tables(table.text)
        self._open = {}


def _opened(name: str, text: str, box: Box) -> OpenTable:
    """The rows of a rank, of a description that may come from anyone."""
    try:
        return open_table(text, box.starts[0], box.stops[0])
    except OneFlowError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise JobFileError(f"the description of embedding {name!r} is damaged: {error}") from error


NO_TABLES = Tables({}, ())


class Snapshots:
    """Snapshots of a job's rows: one for each of its checkpoints, and one of its end.

    job: a name that no other job of the folder has.
    """

    def __init__(self, tables: Tables, job: str) -> None:
        self._tables, self._job = tables, job
        self._own: dict[int, str] = {}
        self._of_step = re.compile(rf"{re.escape(job)}-step-(\d{{1,18}})\.[0-9a-f]{{16}}")

    def save(self, step: int, save_id: str, moment_ns: int) -> None:
        """Save the rows for the checkpoint of a step. Arguments: `Tables.save`."""
        self._own[step] = f"{self._job}-step-{step}.{save_id}"
        self._tables.save(self._own[step], moment_ns)

    def save_end(self, moment_ns: int) -> dict[str, str]:
        """Save the rows that the job leaves. Returns the snapshot of each embedding."""
        name = f"{self._job}-end"
        self._tables.save(name, moment_ns)
        return dict.fromkeys(self._tables.names, name)

    def of(self, step: int) -> dict[str, str]:
        """The snapshots of a checkpoint, by the names of the embeddings."""
        return dict.fromkeys(self._tables.names, self._own.get(step, ""))

    def keep(self, steps: Collection[int]) -> None:
        """Remove those of checkpoints that are there no more. steps: of those that are."""

        def is_old(name: str) -> bool:
            found = self._of_step.fullmatch(name)
            step = int(found[1]) if found else -1
            return found is not None and (step not in steps or name != self._own.get(step, name))

        self._tables.remove(is_old)


NO_SNAPSHOTS = Snapshots(NO_TABLES, "")
