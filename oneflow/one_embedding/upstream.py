"""Look-ups under the names that upstream's own Python code calls: `flow._C.one_embedding_*`."""

from __future__ import annotations

from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError
from oneflow.one_embedding.embedding import handler_of
from oneflow.one_embedding.looking_up import Tables, look_up
from oneflow.tensor.tensor import Tensor


def one_embedding_fused_lookup(
    shadow: Tensor,
    ids: Tensor,
    table_ids: Tensor | None,
    dtype: DType,
    embedding_name: str,
    line_size: int,
    embedding_size: int,
    is_full_cache: bool,
    num_tables: int,
    seed: int,
    padding_idx: int | None = None,
) -> Tensor:
    """The rows of ids in the tables of that name, as `one_embedding.Embedding` looks them up.

    line_size, embedding_size, num_tables: checked against the tables.  is_full_cache and seed are
    the tables' own and change nothing here. Raises ArgumentError.
    """
    handler = handler_of(embedding_name)
    known = handler.sizes
    if (embedding_size, num_tables) != known[1:] or line_size > known[0]:
        raise ArgumentError(
            f"embedding {embedding_name!r} has lines of {known[0]} numbers, rows of {known[1]} and "
            f"{known[2]} tables, not {line_size}, {embedding_size} and {num_tables}"
        )
    tables: Tables = {
        "table": handler.text,
        "size": embedding_size,
        "num_tables": num_tables,
        "padding_idx": padding_idx,
    }
    return look_up(shadow, ids, table_ids, tables).to(dtype)
