"""All rows: importing this fills the table."""

from oneflow.onnx.export import (  # noqa: F401
    elementwise,
    gathers,
    norms,
    pools,
    products,
    recurrent,
    reductions,
    shapes,
)
from oneflow.onnx.export.table import ROWS, write_call

__all__ = ["ROWS", "write_call"]
