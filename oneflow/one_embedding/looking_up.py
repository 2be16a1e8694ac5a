"""Look-ups as ops: in one go on one rank, in steps with exchanges between them on several."""

from __future__ import annotations

from typing import Any, TypedDict

from oneflow.ops.exchange_rows import exchange_rows
from oneflow.ops.one_embedding import (
    one_embedding_fused_lookup,
    one_embedding_gather,
    one_embedding_lookup,
    one_embedding_prefetch,
    one_embedding_recall,
    one_embedding_unique,
)
from oneflow.tensor.tensor import Tensor


class Tables(TypedDict):
    """Attributes of every look-up.

    table: the description of the tables.  size: numbers of a row.  num_tables, padding_idx: see
    `Embedding`.  makes_rows: are rows made of ids that have none?
    """

    table: str
    size: int
    num_tables: int
    padding_idx: int | None
    makes_rows: bool


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
    num_parts = _parts_of(shadow, ids, table_ids, tables)
    if num_parts == 1:
        return one_embedding_fused_lookup(shadow, ids, *given, **tables)
    told: dict[str, Any] = {
        "table": tables["table"],
        "size": tables["size"],
        "num_parts": num_parts,
        "communication": communication,
    }
    makes_rows = tables["makes_rows"]
    came, keys, of_keys, inverse = _brought_to_owners(ids, table_ids, tables, num_parts)
    table = tables["table"]
    came, keys, of_keys = one_embedding_recall(
        shadow, came, keys, of_keys, table=table, num_parts=num_parts
    )
    back, rows = one_embedding_lookup(shadow, came, keys, of_keys, makes_rows=makes_rows, **told)
    sizes, rows = exchange_rows(
        back, rows, num_parts=num_parts, lead=ids.ndim, rows=ids.shape[0], is_padded=False
    )
    return one_embedding_gather(shadow, rows, inverse, sizes, keys, of_keys, **told)


def prefetch(shadow: Tensor, ids: Tensor, table_ids: Tensor | None, tables: Tables) -> None:
    """Begin to read the rows of ids that the next step looks up."""
    num_parts = _parts_of(shadow, ids, table_ids, tables)
    told: dict[str, Any] = {"table": tables["table"], "makes_rows": tables["makes_rows"]}
    if num_parts > 1:
        came, keys, of_keys, _ = _brought_to_owners(
            ids, table_ids, tables, num_parts, is_ahead=True
        )
        one_embedding_prefetch(shadow, keys, of_keys, came, num_parts=num_parts, **told)
        return
    given = () if table_ids is None else (table_ids,)
    one_embedding_prefetch(shadow, ids, *given, padding_idx=tables["padding_idx"], **told)


def _brought_to_owners(
    ids: Tensor,
    table_ids: Tensor | None,
    tables: Tables,
    num_parts: int,
    *,
    is_ahead: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Send the distinct ids of a batch to the parts that own their rows.

    Returns the numbers of ids that came to each part from each, those ids and their tables, and for
    each id of the batch its place among those that its part has sent.
    """
    given = () if table_ids is None else (table_ids,)
    sizes, keys, of_keys, inverse = one_embedding_unique(
        ids,
        *given,
        table=tables["table"],
        num_parts=num_parts,
        num_tables=tables["num_tables"],
        padding_idx=tables["padding_idx"],
        is_ahead=is_ahead,
    )
    came, keys, of_keys = exchange_rows(
        sizes, keys, of_keys, num_parts=num_parts, lead=ids.ndim, is_padded=False
    )
    return came, keys, of_keys, inverse


def _parts_of(shadow: Tensor, ids: Tensor, table_ids: Tensor | None, tables: Tables) -> int:
    """Number of ranks between which a batch is split. Of few ids each rank looks up those it has,
    and the results are added up: then 1, as on one rank."""
    num_parts: int = shadow.placement.size if shadow.is_global else 1
    is_listed = table_ids is not None or tables["num_tables"] == 1
    can_be_split = ids.ndim > (not is_listed) and ids.shape[0] >= num_parts
    return num_parts if can_be_split else 1
