"""Steps of look-ups and updates under the names that upstream's own Python code calls:
`flow._C.one_embedding_*`.

Modules call `one_embedding_fused_lookup`. The others are upstream's pipeline in pieces, for
code that calls them one by one, on one rank: here embeddings find distinct ids and exchange them in
their look-up, and optimizers update rows. Arrays of distinct ids have room for all ids of a batch,
of which the first `num_unique` count.
"""

from __future__ import annotations

import numpy as np

from oneflow.core.dtype import DType, float32, int32
from oneflow.core.errors import ArgumentError, PlacementError
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import arange, ones, zeros
from oneflow.functional.from_data import tensor
from oneflow.functional.gather_scatter import index_add, scatter
from oneflow.functional.sort_and_search import argsort, where
from oneflow.kernels.array import Array
from oneflow.one_embedding.embedding import OneEmbeddingHandler, handler_of
from oneflow.one_embedding.looking_up import Tables, look_up
from oneflow.ops.one_embedding import one_embedding_fused_lookup_grad as keep_gradients
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
    embedding_tables: str = "",
    padding_idx: int | None = None,
    seed: int = 0,
) -> Tensor:
    """The rows of ids in the tables of that name, as `one_embedding.Embedding` looks them up.

    line_size, embedding_size, num_tables: checked against the tables.  is_full_cache,
    embedding_tables and seed are the tables' own and change nothing here. Raises ArgumentError.
    """
    handler = _tables_named(embedding_name, line_size, embedding_size)
    if num_tables != handler.sizes[2]:
        raise ArgumentError(
            f"embedding {embedding_name!r} has {handler.sizes[2]} tables, not {num_tables}"
        )
    tables: Tables = {
        "table": handler.text,
        "size": embedding_size,
        "num_tables": num_tables,
        "padding_idx": padding_idx,
        "makes_rows": True,
    }
    return look_up(shadow, ids, table_ids, tables).to(dtype)


def one_embedding_fused_lookup_grad(
    ids: Tensor, embedding_grad: Tensor, embedding_name: str, line_size: int, embedding_size: int
) -> None:
    """Add gradients, float (*ids.shape, embedding_size), to those that the next update takes.

    ids: a column for each table of that name.
    """
    handler = _tables_named(embedding_name, line_size, embedding_size)
    shadow, num_tables = handler.shadow, handler.sizes[2]
    norms = keep_gradients(
        shadow, embedding_grad.to(float32), ids, table=handler.text, num_tables=num_tables
    )
    shadow.grad = norms if shadow.grad is None else shadow.grad + norms


def _tables_named(name: str, line_size: int, embedding_size: int) -> OneEmbeddingHandler:
    handler = handler_of(name)
    line, width, _ = handler.sizes
    if embedding_size != width or not width <= line_size <= line:
        raise ArgumentError(
            f"embedding {name!r} has rows of {width} numbers, {line} with their states, not "
            f"{embedding_size} and {line_size}"
        )
    return handler


# ---- distinct ids --------------------------------------------------------------------------------


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


# ---- rows with their states ----------------------------------------------------------------------


def one_embedding_lookup(
    num_unique_ids: Tensor,
    unique_ids: Tensor,
    table_ids: Tensor,
    dtype: DType,
    embedding_dtype: DType,
    line_size: int,
    embedding_size: int,
    embedding_name: str,
    embedding_tables: str = "",
    state_initializer: str = "",
    seed: int = 0,
) -> Tensor:
    """Rows of distinct ids with their states, (n, line_size); zeros behind the first num_unique.

    Outside of graphs. States of new rows are 0: state_initializer, like embedding_dtype,
    embedding_tables and seed, changes nothing.
    """
    handler = _tables_named(embedding_name, line_size, embedding_size)
    lines = np.zeros((unique_ids.shape[0], line_size), np.float32)
    keys, tables = _ids_of(num_unique_ids, unique_ids, table_ids)
    handler.rows.store.get(keys, tables, lines[: keys.size])
    return tensor(lines).to(dtype)


def one_embedding_embedding_put(
    num_unique_ids: Tensor,
    unique_ids: Tensor,
    unique_embeddings: Tensor,
    embedding_name: str,
    line_size: int,
) -> None:
    """Replace the rows of distinct ids and their states, outside of graphs.

    unique_embeddings: as `one_embedding_lookup` gives.  Only for embeddings of one table, because
    ids come without theirs.
    """
    handler = handler_of(embedding_name)
    _tables_named(embedding_name, line_size, handler.sizes[1])
    if handler.sizes[2] != 1:
        raise ArgumentError(
            f"one_embedding_embedding_put: embedding {embedding_name!r} has {handler.sizes[2]} "
            "tables, and nothing says of which the ids are"
        )
    keys, tables = _ids_of(num_unique_ids, unique_ids, None)
    lines = unique_embeddings.detach().to(float32).numpy()[: keys.size]

    def change(rows: Array) -> None:
        rows[:, :line_size] = lines

    handler.rows.store.update(keys, tables, change)


def _ids_of(num_unique: Tensor, ids: Tensor, table_ids: Tensor | None) -> tuple[Array, Array]:
    count = int(num_unique.item())
    keys = ids.numpy()[:count].astype(np.int64).view(np.uint64)
    tables = np.zeros(count, np.int32) if table_ids is None else table_ids.numpy()[:count]
    return keys, tables


# ---- updates of rows with their states -----------------------------------------------------------


def one_embedding_sgd_update(
    num_unique_ids: Tensor,
    unique_embeddings: Tensor,
    embedding_grad: Tensor,
    learning_rate: Tensor | None = None,
    down_scale_by_tensor: Tensor | None = None,
    skip_if: Tensor | None = None,
    learning_rate_val: float = 0.0,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    line_size: int = 0,
    embedding_size: int = 0,
    embedding_name: str = "",
) -> Tensor:
    """Rows with their states after a step of SGD, of which a momentum is one.

    num_unique_ids: int[1], rows that count; others stay.  unique_embeddings: (n, line_size).
    embedding_grad: (n, embedding_size), times `scale` and over down_scale_by_tensor.
    learning_rate: a tensor, or the number learning_rate_val.  skip_if: int[1]; unless it is 0
    nothing changes.  weight_decay: times learning rate and row, as in AdamW.
    """
    row, *states = _columns(unique_embeddings, 2 if momentum else 1, embedding_size, embedding_grad)
    grad = _scaled(embedding_grad, scale, down_scale_by_tensor)
    lr = _rate(learning_rate, learning_rate_val)
    if momentum:
        grad = states[0] * momentum + grad
        states = [grad]
    made = [row - grad * lr - row * (lr * weight_decay), *states]
    return _chosen(num_unique_ids, skip_if, made, unique_embeddings)


def one_embedding_adam_update(
    num_unique_ids: Tensor,
    unique_embeddings: Tensor,
    embedding_grad: Tensor,
    learning_rate: Tensor | None = None,
    down_scale_by_tensor: Tensor | None = None,
    skip_if: Tensor | None = None,
    bias_correction1: Tensor | None = None,
    bias_correction2: Tensor | None = None,
    learning_rate_val: float = 0.0,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    bias_correction1_val: float = 1.0,
    bias_correction2_val: float = 1.0,
    epsilon: float = 1e-8,
    do_bias_correction: bool = True,
    line_size: int = 0,
    embedding_size: int = 0,
    embedding_name: str = "",
) -> Tensor:
    """Rows with their two means after a step of Adam.

    bias_correction1, 2: 1 - beta to the power of the step, tensors or numbers; 1 unless
    do_bias_correction.  The rest: `one_embedding_sgd_update`.
    """
    row, m, v = _columns(unique_embeddings, 3, embedding_size, embedding_grad)
    grad = _scaled(embedding_grad, scale, down_scale_by_tensor)
    lr = _rate(learning_rate, learning_rate_val)
    first = _rate(bias_correction1, bias_correction1_val) if do_bias_correction else 1.0
    second = _rate(bias_correction2, bias_correction2_val) if do_bias_correction else 1.0
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    move = m / ((v / second).sqrt() + epsilon) * (lr / first)
    made = [row - move - row * (lr * weight_decay), m, v]
    return _chosen(num_unique_ids, skip_if, made, unique_embeddings)


def one_embedding_adagrad_update(
    num_unique_ids: Tensor,
    unique_embeddings: Tensor,
    embedding_grad: Tensor,
    learning_rate: Tensor | None = None,
    down_scale_by_tensor: Tensor | None = None,
    skip_if: Tensor | None = None,
    train_step: Tensor | None = None,
    train_step_val: int = 0,
    learning_rate_val: float = 0.0,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    lr_decay: float = 0.0,
    epsilon: float = 1e-10,
    line_size: int = 0,
    embedding_size: int = 0,
    embedding_name: str = "",
) -> Tensor:
    """Rows with their sums of squares after a step of Adagrad.

    train_step: a tensor, or the number train_step_val; the learning rate is divided by
    1 + train_step · lr_decay.  The rest: `one_embedding_sgd_update`.
    """
    row, sums = _columns(unique_embeddings, 2, embedding_size, embedding_grad)
    grad = _scaled(embedding_grad, scale, down_scale_by_tensor)
    slowed = _rate(train_step, train_step_val) * lr_decay + 1
    lr = _rate(learning_rate, learning_rate_val) / slowed
    sums = sums + grad * grad
    made = [row - grad / (sums.sqrt() + epsilon) * lr - row * (lr * weight_decay), sums]
    return _chosen(num_unique_ids, skip_if, made, unique_embeddings)


def one_embedding_ftrl_update(
    num_unique_ids: Tensor,
    unique_embeddings: Tensor,
    embedding_grad: Tensor,
    learning_rate: Tensor | None = None,
    down_scale_by_tensor: Tensor | None = None,
    skip_if: Tensor | None = None,
    learning_rate_val: float = 0.0,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    lr_power: float = -0.5,
    lambda1: float = 0.0,
    lambda2: float = 0.0,
    beta: float = 0.0,
    line_size: int = 0,
    embedding_size: int = 0,
    embedding_name: str = "",
) -> Tensor:
    """Rows with their accumulator and z after a step of FTRL.

    lr_power: the power of the accumulator as it stands, also where it is negative.  The rest:
    `one_embedding_sgd_update`.
    """
    row, sums, z = _columns(unique_embeddings, 3, embedding_size, embedding_grad)
    grad = _scaled(embedding_grad, scale, down_scale_by_tensor)
    lr = _rate(learning_rate, learning_rate_val)
    new = sums + grad * grad
    power = new**lr_power
    z = z + grad - row * ((power - sums**lr_power) / lr)
    pulled = (z.sign() * lambda1 - z) / ((power + beta) / lr + lambda2) - row * (lr * weight_decay)
    made = [where(z.abs() < lambda1, zeros(1), pulled), new, z]
    return _chosen(num_unique_ids, skip_if, made, unique_embeddings)


def _columns(lines: Tensor, count: int, size: int, grad: Tensor) -> list[Tensor]:
    """Rows and their states, each of as many numbers as a gradient."""
    width = size or grad.shape[1]
    if lines.shape[1] < count * width:
        raise ArgumentError(
            f"rows of {width} numbers with {count - 1} states need lines of {count * width}, not "
            f"{lines.shape[1]}"
        )
    return [lines[:, k * width : (k + 1) * width] for k in range(count)]


def _scaled(grad: Tensor, scale: float, down_scale_by: Tensor | None) -> Tensor:
    return grad * scale if down_scale_by is None else grad * scale / down_scale_by


def _rate(given: Tensor | None, value: float) -> Tensor | float:
    return value if given is None else given


def _chosen(
    num_unique: Tensor, skip_if: Tensor | None, columns: list[Tensor], before: Tensor
) -> Tensor:
    """The new columns of the rows that count, unless nothing is to change."""
    used = sum(column.shape[1] for column in columns)
    rest = [before[:, used:]] if used < before.shape[1] else []
    counts = arange(before.shape[0]).reshape(-1, 1) < num_unique
    if skip_if is not None:
        counts = counts & (skip_if == 0)
    found: Tensor = where(counts, cat([*columns, *rest], 1), before)
    return found
