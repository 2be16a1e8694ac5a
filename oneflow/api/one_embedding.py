"""Embedding tables that grow with their ids and may be larger than memory."""

from oneflow.api.row import ALL, Row, classes

_HOMES = {
    "embedding": "Embedding MultiTableEmbedding MultiTableMultiColumnEmbedding OneEmbeddingHandler",
    "optimizer": "Ftrl Optimizer SmartDecayAdam",
    "store.options": (
        "make_cached_host_mem_store_options make_cached_ssd_store_options "
        "make_device_mem_store_options"
    ),
    "store.persistent_table": "make_persistent_table_reader make_persistent_table_writer",
    "tables": (
        "make_column_options make_constant_initializer make_normal_initializer make_table "
        "make_table_options make_trunc_normal_initializer make_uniform_initializer "
        "make_xavier_normal_initializer make_xavier_uniform_initializer"
    ),
}

ROWS: tuple[Row, ...] = tuple(
    row
    for home, names in _HOMES.items()
    for row in classes(f"one_embedding.{home}", "one_embedding", names, unknown=ALL)
)
