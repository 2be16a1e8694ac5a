"""Embeddings whose rows are made when their ids first come, and lie in tiers of memory.

    embedding = flow.one_embedding.MultiTableEmbedding(
        "users", embedding_dim=32, dtype=flow.float, key_type=flow.int64,
        tables=[make_table_options(initializer)] * 26,
        store_options=make_device_mem_store_options(path, capacity, size_factor=2),
    )
    out = embedding(ids)  # (batch, 26) -> (batch, 26, 32)

The module has one parameter, the shadow of its tables (oneflow/ops/one_embedding.py).
"""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from oneflow.boxing.boxes import shard_box
from oneflow.core.config import current_config
from oneflow.core.dtype import DType, float16, float32, int32, int64
from oneflow.core.errors import ArgumentError, CallError, DTypeError, RowStoreError
from oneflow.core.sbp import PARTIAL, all_broadcast
from oneflow.distributed.world import world
from oneflow.functional.creation import zeros
from oneflow.functional.from_data import tensor
from oneflow.kernels.open_tables import OpenTable, close_tables, open_table, opened
from oneflow.kernels.row_forms import loss_of
from oneflow.nn.module import Module
from oneflow.nn.parameter import RowTable
from oneflow.one_embedding.looking_up import Tables, look_up, prefetch
from oneflow.one_embedding.tables import Initializer, columns_of
from oneflow.ops.one_embedding import BUCKETS, COMMUNICATIONS
from oneflow.tensor.tensor import Tensor

_NAMES: weakref.WeakValueDictionary[str, OneEmbeddingHandler] = weakref.WeakValueDictionary()
"""The embeddings of this process by name."""
_KEYS = {"int64": int64, "int32": int32, "uint64": int64, "uint32": int32}
"""Types of ids, and the dtype of the tensors that hold them: unsigned ones by their bits."""


class OneEmbeddingHandler:
    """Tables under a name, which are closed when nobody has this object any more.

    text: their description, by which kernels open them.  shadow: see the top of the file.  sizes:
    numbers of a row with its states, without them, and of tables.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.name: str = description["name"]
        self.text = json.dumps(description, sort_keys=True)
        columns = description["columns"]
        width = sum(column["width"] for column in columns[0])
        self.sizes: tuple[int, int, int] = description["line_size"], width, len(columns)
        if self.name in _NAMES:
            gc.collect()  # of a module that is in use no more
        if self.name in _NAMES:
            raise ArgumentError(
                f"there is an embedding named {self.name!r} in this process already; give each a "
                "name of its own, or use the one module in several places"
            )
        _NAMES[self.name] = self
        self.shadow = RowTable(zeros(BUCKETS))
        self.shadow.table, self.shadow.forget = self.text, _forgetter(self.text)
        weakref.finalize(self, close_tables, self.text)

    def save_snapshot(self, snapshot_name: str) -> None:
        """Keep the rows as they are under a name; on return all ranks have kept theirs. Raises
        RowStoreError on all of them if one could not.
        """
        moment = self.moment_ns()
        error: RowStoreError | None = None
        try:
            self.rows.store.save_snapshot(snapshot_name, moment)
        except RowStoreError as caught:  # raised below, once the others know
            error = caught
        failed = self._ranks_where(error is not None)
        if error is not None:
            raise error
        if failed:
            listed = ", ".join(map(str, failed))
            raise RowStoreError(
                f"snapshot {snapshot_name!r} of embedding {self.name!r} is not complete: rank "
                f"{listed} could not save its rows and says why"
            )

    def _ranks_where(self, is_so: bool) -> list[int]:
        """The ranks of the rows that say so. Every one of them calls."""
        shadow, rank = self.shadow, world().rank
        if not shadow.is_global:
            return [rank] if is_so else []
        place = shadow.placement
        said = zeros(world().world_size, dtype=int64)
        said[rank] = int(is_so)
        given = said.to_global(placement=place, sbp=(PARTIAL,) * place.ndim)
        heard = given.to_global(sbp=all_broadcast(place.ndim)).to_local()
        return [int(i) for i in heard.numpy().nonzero()[0]]

    def moment_ns(self) -> int:
        """The time as the first of the ranks knows it. Every rank calls."""
        moment, shadow = tensor(time.time_ns()), self.shadow
        if shadow.is_global:
            everywhere = all_broadcast(shadow.placement.ndim)
            moment = moment.to_global(placement=shadow.placement, sbp=everywhere).to_local()
        return int(moment.item())

    def load_snapshot(self, snapshot_name: str) -> None:
        """Replace the rows by those of a snapshot, also of another number of ranks."""
        self.rows.load_snapshot(snapshot_name)

    @property
    def rows(self) -> OpenTable:
        """The rows of this rank, opened if they are not."""
        return open_table(self.text, *self._part())

    def _part(self) -> tuple[int | None, int | None]:
        """The buckets of this rank."""
        shadow = self.shadow
        if not shadow.is_global:
            return None, None
        box = shard_box(shadow.meta.shape, shadow.sbp, shadow.placement, world().rank)
        return box.starts[0], box.stops[0]


def handler_of(name: str) -> OneEmbeddingHandler:
    """The embedding of this process with that name. Raises ArgumentError."""
    found = _NAMES.get(name)
    if found is None:
        raise ArgumentError(
            f"no embedding named {name!r} in this process; there are {sorted(_NAMES) or 'none'}"
        )
    return found


def _forgetter(text: str) -> Callable[[], None]:
    """A function that holds the description and not its handler."""

    def forget() -> None:
        for table in opened(text):
            table.forget()

    return forget


class Embedding(Module):
    """Ids of any shape -> rows (..., width), of one table or several.

    name: unique in a process.  embedding_dim: width of a row, or of each of its columns, which have
    initializers of their own.  dtype: float32, or float16 for results that are rounded.  key_type:
    of ids: int64, int32, or "uint64" or "uint32" for hashes whose bits lie in such tensors.
    tables: `make_table_options` of each.  store_options: `make_..._store_options`, whose
    size_factor leaves room for an optimizer's states: 1 + their number.  padding_idx: this id gives
    zeros and learns nothing.  seed: of the first values, which depend on it, table and id alone.
    communication: the form in which rows and their gradients travel between ranks: float32,
    float16, or int8 with a scale for each row; `statistics()` shows the loss. None: float32,
    or int8 with ONEFLOW_ONE_EMBEDDING_ENABLE_QUANTIZED_COMM=1.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int | Sequence[int],
        dtype: DType,
        key_type: DType | str,
        tables: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        store_options: Mapping[str, Any],
        default_initializer: Initializer | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        communication: str | None = None,
    ) -> None:
        super().__init__()
        widths = list(embedding_dim) if isinstance(embedding_dim, Sequence) else [embedding_dim]
        if not widths or any(type(w) is not int or w < 1 for w in widths):
            raise ArgumentError(
                f"embedding {name!r}: embedding_dim is {embedding_dim!r}, must be a width, or a "
                "list of widths of columns: whole numbers of at least 1"
            )
        if dtype not in (float32, float16):
            raise DTypeError(f"embedding {name!r}: dtype is {dtype}, must be float32 or float16")
        self.key_name = key_type if isinstance(key_type, str) else key_type.name
        if self.key_name not in _KEYS:
            raise DTypeError(
                f"embedding {name!r}: key_type is {key_type}, must be one of {', '.join(_KEYS)}"
            )
        listed = [tables] if isinstance(tables, Mapping) else list(tables)
        if not listed:
            raise ArgumentError(f"embedding {name!r} has no tables: list make_table_options(...)")
        self.embedding_dim, self.num_tables = sum(widths), len(listed)
        if communication is None:
            communication = "int8" if current_config().quantizes_embeddings else "float32"
        if communication not in COMMUNICATIONS:
            raise ArgumentError(
                f"embedding {name!r}: communication is {communication!r}, must be one of "
                f"{', '.join(COMMUNICATIONS)}"
            )
        self.dtype, self.padding_idx, self.seed = dtype, padding_idx, seed
        self.communication = communication
        self.one_embedding = OneEmbeddingHandler(
            {
                "name": name,
                "key_type": self.key_name,
                "line_size": _line_size(store_options, self.embedding_dim),
                "columns": _columns(name, listed, widths, default_initializer),
                "seed": seed,
                "store": store_options,
            }
        )
        self.shadow = self.one_embedding.shadow

    def forward(self, ids: Tensor, table_ids: Tensor | None = None) -> Tensor:
        """The rows of ids. table_ids: the table of each; None: one table, or a table for each
        position of the last dim. After `eval()` no rows are made: ids that have none get the first
        values that theirs would have, also where the tables are full.
        """
        self._check_ids(ids)
        rows = look_up(self.shadow, ids, table_ids, self._tables, self.communication)
        return rows if self.dtype is float32 else rows.to(self.dtype)

    def prefetch(self, ids: Tensor, table_ids: Tensor | None = None) -> None:
        """Begin to read the rows of ids that are looked up next, on a thread of its own;
        in `build` of a graph, the ids of the next step. Changes no result: a row that is updated
        after it was read is read again. ids, table_ids: as the look-up will be given them.
        """
        self._check_ids(ids)
        prefetch(self.shadow, ids, table_ids, self._tables)

    def _check_ids(self, ids: Tensor) -> None:
        wanted = _KEYS[self.key_name]
        if not isinstance(ids, Tensor):
            raise DTypeError(
                f"embedding {self.one_embedding.name!r}: ids are a {type(ids).__name__}, must be a "
                f"tensor of {wanted.name}: use flow.tensor or flow.from_numpy"
            )
        if ids.dtype is not wanted and not (wanted is int64 and ids.dtype is int32):
            raise DTypeError(
                f"embedding {self.one_embedding.name!r}: ids are {ids.meta}, but its key_type is "
                f"{self.key_name}: give {wanted.name}"
            )

    @property
    def _tables(self) -> Tables:
        return {
            "table": self.one_embedding.text,
            "size": self.embedding_dim,
            "num_tables": self.num_tables,
            "padding_idx": self.padding_idx,
            "makes_rows": self.training,
        }

    def save_snapshot(self, snapshot_name: str) -> None:
        """Keep the rows as they are under a name, beside the persistent path. Every rank calls, and
        returns when all have saved theirs. Raises RowStoreError on all if one could not.
        """
        self.one_embedding.save_snapshot(snapshot_name)

    def load_snapshot(self, snapshot_name: str) -> None:
        """Replace the rows by those of a snapshot. Every rank calls."""
        self.one_embedding.load_snapshot(snapshot_name)

    def snapshots(self) -> list[str]:
        """Names of the snapshots beside the persistent path of which this rank has a part, in
        order: those of scripts, state dicts, exports and jobs.
        """
        return self.one_embedding.rows.store.snapshot_names()

    def remove_snapshot(self, snapshot_name: str) -> None:
        """Remove a snapshot, and the rows on the disk that no other one needs. Every rank calls.
        Raises RowStoreError if there is none.
        """
        self.one_embedding.rows.store.remove_snapshot(snapshot_name)

    def statistics(self) -> dict[str, float]:
        """Counts of this rank since its rows were opened: `ids` whose rows were looked up here (of
        several ranks the distinct ones of each), the `distinct` ones among them by batch, rows
        `updated`, `rows` that are there, and the store's own counts (store/statistics.py): hits and
        bytes by tier, rows that wait to be written, stalls. Padding is not counted. `row_error` and
        `gradient_error`: root mean square of this rank's loss in the rows and gradients that it
        sent (`communication`), as a share of theirs. `ahead`: rows that look-ups found read
        (`prefetch`).
        """
        rows, text = self.one_embedding.rows, self.one_embedding.text
        rows.settle()
        counts = {**asdict(rows.counts), **asdict(rows.store.statistics)}
        lost = {f"{kind}_error": loss_of(text, f"{kind}s").relative for kind in ("row", "gradient")}
        return {**counts, **lost, "ahead": rows.ahead.used, "rows": len(rows.store)}

    def get_extra_state(self) -> dict[str, str]:
        """The name of a snapshot of the rows, which a state dict holds in their place."""
        name = f"state-{self.one_embedding.moment_ns()}"
        self.save_snapshot(name)
        return {"snapshot": name}

    def set_extra_state(self, state: object) -> None:
        """Load the snapshot of a state dict, from the persistent path. Raises ArgumentError if the
        state names none.
        """
        if not isinstance(state, Mapping) or "snapshot" not in state:
            name = self.one_embedding.name
            raise ArgumentError(f"embedding {name!r}: its state must name a snapshot, not {state}")
        self.load_snapshot(state["snapshot"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        """Raises CallError: a copy would need rows of its own, and there is one store of a name."""
        raise CallError(
            f"embedding {self.one_embedding.name!r} cannot be copied: its rows lie in the store of "
            "its name; make another one with a name and a persistent_path of its own"
        )

    def extra_repr(self) -> str:
        return f"{self.one_embedding.name!r}, {self.num_tables} x {self.embedding_dim}"


class MultiTableEmbedding(Embedding):
    """Tables whose rows have one width and one initializer each: see `Embedding`."""

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        dtype: DType,
        key_type: DType | str,
        tables: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        store_options: Mapping[str, Any],
        default_initializer: Initializer | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        communication: str | None = None,
    ) -> None:
        if not isinstance(embedding_dim, int):
            raise ArgumentError(
                f"MultiTableEmbedding {name!r}: embedding_dim is {embedding_dim}; for several "
                "columns use MultiTableMultiColumnEmbedding"
            )
        super().__init__(
            name, embedding_dim, dtype, key_type, tables, store_options, default_initializer,
            padding_idx, seed, communication,
        )  # fmt: skip


class MultiTableMultiColumnEmbedding(Embedding):
    """Tables whose rows consist of columns with initializers of their own: see `Embedding`."""


def _columns(
    name: str,
    tables: Sequence[Mapping[str, Any]],
    widths: Sequence[int],
    default: Initializer | None,
) -> list[list[dict[str, Any]]]:
    """The columns of each table. Raises ArgumentError, which names the table."""
    found = []
    for number, table in enumerate(tables):
        try:
            found.append(columns_of(table, widths, default))
        except ArgumentError as error:
            raise ArgumentError(f"embedding {name!r}, table {number}: {error}") from None
    return found


def _line_size(store_options: Mapping[str, Any], width: int) -> int:
    """Numbers of a row: its states, and where there is room for Adam's, the step in which it last
    got a gradient."""
    try:
        size = int(store_options.get("storage_dim", -1))
        if size <= 0:
            size = width * int(store_options["size_factor"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"store options {store_options!r} have no size_factor; make them by "
            "make_device_mem_store_options and the like"
        ) from error
    if size < width:
        raise ArgumentError(f"storage_dim is {size}, but a row alone has {width} numbers")
    return size + (size >= 3 * width)
