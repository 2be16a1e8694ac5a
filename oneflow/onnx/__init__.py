"""`flow.onnx`: ONNX files written from logical graphs, and read as modules."""

from __future__ import annotations

from oneflow.onnx.converting import convert_to_onnx_and_check, export_onnx_model
from oneflow.onnx.errors import OnnxExportError, OnnxImportError
from oneflow.onnx.reader.model import OnnxModule, load
from oneflow.onnx.writer.api import export
from oneflow.onnx.writer.tracing import TrainingMode, is_in_onnx_export

OnnxExporterError = OnnxExportError

__all__ = [
    "OnnxExportError",
    "OnnxExporterError",
    "OnnxImportError",
    "OnnxModule",
    "TrainingMode",
    "convert_to_onnx_and_check",
    "export",
    "export_onnx_model",
    "is_in_onnx_export",
    "is_onnxrt_backend_supported",
    "load",
    "register_custom_op_symbolic",
    "unregister_custom_op_symbolic",
]


def is_onnxrt_backend_supported() -> bool:
    """Return False: graphs run on kernels of this library."""
    return False


def register_custom_op_symbolic(*_: object, **__: object) -> None:
    """Take no note: functions of PyTorch's exporter write nothing here."""


unregister_custom_op_symbolic = register_custom_op_symbolic
