"""All rows: importing this fills the table."""

from oneflow.onnx.writer import (  # noqa: F401
    elementwise,
    gathers,
    norms,
    pools,
    products,
    recurrent,
    reductions,
    shapes,
)
from oneflow.onnx.writer.table import ROWS, write_call

__all__ = ["ROWS", "write_call"]
