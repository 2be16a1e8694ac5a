"""Names of PyTorch that programs ask for and nothing here needs: oneflow/compat/torch."""

from oneflow.api.row import Row, classes

ROWS: tuple[Row, ...] = (
    *classes("compat.torch.libraries", "utils", "load_library", unknown="load_library"),
)
