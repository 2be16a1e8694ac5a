"""Look-ups as ops: in one go on one rank, in steps with exchanges between them on several."""

from __future__ import annotations

from typing import Any, TypedDict

from oneflow.ops.exchange_rows import exchange_rows
from oneflow.ops.one_embedding import (
    one_embedding_fused_lookup,
    one_embedding_gather,
    one_embedding_lookup,
    one_embedding_unique,
)
from oneflow.tensor.tensor import Tensor


class Tables(TypedDict):
    """Attributes of every look-up.

    table: the description of the tables.  size: numbers of a row.  num_tables, padding_idx: see
    `Embedding`.
    """

    table: str
    size: int
    num_tables: int
    padding_idx: int | None


def look_up(
    shadow: Tensor,
    ids: Tensor,
    table_ids: Tensor | None,
    tables: Tables,
    communication: str = "float32",
) -> Tensor:
    """float32 (*ids.shape, size): the rows of ids. communication: the form in which rows and
    gradients travel between ranks.
    """
    given = () if table_ids is None else (table_ids,)
    num_parts = shadow.placement.size if shadow.is_global else 1
    if num_parts == 1 or not _can_be_split(ids, table_ids, tables, num_parts):
        return one_embedding_fused_lookup(shadow, ids, *given, **tables)
    of_ids: dict[str, Any] = {"table": tables["table"], "num_parts": num_parts}
    of_rows = {**of_ids, "size": tables["size"], "communication": communication}
    moved: dict[str, Any] = {"num_parts": num_parts, "lead": ids.ndim, "is_padded": False}
    sizes, keys, found_tables, inverse = one_embedding_unique(
        ids,
        *given,
        **of_ids,
        num_tables=tables["num_tables"],
        padding_idx=tables["padding_idx"],
    )
    came, keys, found_tables = exchange_rows(sizes, keys, found_tables, **moved)
    back, rows = one_embedding_lookup(shadow, came, keys, found_tables, **of_rows)
    sizes, rows = exchange_rows(back, rows, **moved, rows=ids.shape[0])
    return one_embedding_gather(shadow, rows, inverse, sizes, keys, found_tables, **of_rows)


def _can_be_split(ids: Tensor, table_ids: Tensor | None, tables: Tables, num_parts: int) -> bool:
    """Whether a batch has something for each rank: of few ids each rank looks up those it has, and
    the results are added up."""
    is_listed = table_ids is not None or tables["num_tables"] == 1
    return ids.ndim > (not is_listed) and ids.shape[0] >= num_parts
