"""Upstream's exchange of ids and rows in pieces, `flow._C.one_embedding_*`, for programs that call
them one by one, on one rank.

Modules of `flow.one_embedding` find distinct ids and exchange them in their look-up. Arrays of
distinct ids have room for all ids of a batch, of which the first `num_unique` count.
"""

from __future__ import annotations

from oneflow.core.dtype import int32
from oneflow.core.errors import PlacementError
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import arange, ones, zeros
from oneflow.functional.gather_scatter import index_add, scatter
from oneflow.functional.sort_and_search import argsort
from oneflow.tensor.tensor import Tensor


def one_embedding_unique_key_value_pair(
    keys: Tensor, values: Tensor | None = None, num_tables: int = 1, embedding_name: str = ""
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(num_unique, unique_keys, unique_values, inverse_indices) of a batch of ids.

    keys: ids of any shape.  values: the table of each; None: the number of its column of
    `num_tables`.  Returns int32[1], two arrays of as many elements as `keys`, and int32 of the
    shape of `keys`, by which unique_keys[inverse_indices] are `keys`. Equal ids are taken to be of
    one table.
    """
    _require_one_rank(keys)
    flat = keys.reshape(-1)
    count = flat.shape[0]
    if values is None:
        values = arange(num_tables, dtype=int32).expand(count // num_tables, num_tables)
    values = values.reshape(-1)
    order = argsort(flat)
    line = flat[order]
    is_first = cat([ones(min(count, 1), dtype=int32), (line[1:] != line[:-1]).to(int32)])
    number = is_first.cumsum(0) - 1
    inverse = scatter(zeros(count, dtype=int32), 0, order, number.to(int32))
    unique = scatter(zeros(count, dtype=flat.dtype), 0, number, line)
    tables = scatter(zeros(count, dtype=values.dtype), 0, number, values[order])
    return is_first.sum().reshape(1).to(int32), unique, tables, inverse.reshape(keys.shape)


def one_embedding_id_shuffle(
    ids: Tensor, table_ids: Tensor | None = None, num_tables: int = 1, embedding_name: str = ""
) -> tuple[Tensor, ...]:
    """(num_unique_matrix, inverse_unique_partition_indices, cur_rank_num_unique,
    cur_rank_unique_ids, cur_rank_unique_table_ids, cur_rank_inverse_indices) of a batch of ids.

    Arguments: `one_embedding_unique_key_value_pair`. One rank owns all ids, so its part is the
    whole, in order.
    """
    count, unique, tables, inverse = one_embedding_unique_key_value_pair(ids, table_ids, num_tables)
    return count, inverse, count, unique, tables, arange(unique.shape[0], dtype=int32)


def one_embedding_embedding_shuffle(
    cur_rank_embeddings: Tensor,
    num_unique_matrix: Tensor,
    cur_rank_inverse_indices: Tensor,
    inverse_unique_partition_indices: Tensor,
    embedding_name: str = "",
) -> Tensor:
    """Rows of distinct ids, (n, size), at each place of the batch of `one_embedding_id_shuffle`."""
    return cur_rank_embeddings[cur_rank_inverse_indices][inverse_unique_partition_indices]


def one_embedding_embedding_gradient_shuffle(
    embedding_grad: Tensor,
    num_unique_matrix: Tensor,
    cur_rank_inverse_indices: Tensor,
    inverse_unique_partition_indices: Tensor,
    embedding_name: str = "",
) -> Tensor:
    """Sums of the gradients of a batch over equal ids: inverse of
    `one_embedding_embedding_shuffle`."""
    size = embedding_grad.shape[-1]
    sums = embedding_grad.reshape(-1, size)
    for index in (inverse_unique_partition_indices, cur_rank_inverse_indices):
        empty = zeros(cur_rank_inverse_indices.shape[0], size, dtype=sums.dtype)
        sums = index_add(empty, 0, index.reshape(-1), sums)
    return sums


def _require_one_rank(x: Tensor) -> None:
    if x.is_global and x.placement.size > 1:
        raise PlacementError(
            "steps of one_embedding run on one rank; over several, modules of flow.one_embedding "
            "exchange their ids and rows themselves"
        )
