"""`torch.onnx`: nothing writes ONNX files here; packages may ask whether one is being written."""

from __future__ import annotations

from typing import NoReturn

from oneflow.core.errors import OneFlowError

__all__ = ["OnnxExporterError", "export", "is_in_onnx_export", "is_onnxrt_backend_supported"]


class OnnxExporterError(OneFlowError):
    """Raised for every export."""


def is_in_onnx_export() -> bool:
    """Return False: nothing is exported."""
    return False


def is_onnxrt_backend_supported() -> bool:
    """Return False: graphs run on kernels of this library."""
    return False


def export(*_: object, **__: object) -> NoReturn:
    """Refuse: nothing writes ONNX files."""
    raise OnnxExporterError(
        "onnx.export: nothing writes ONNX files here; save the state_dict() as safetensors, or "
        "write a job file with graph.export(file)"
    )


dynamo_export = export


def register_custom_op_symbolic(*_: object, **__: object) -> None:
    """Take no note: nothing is exported."""


unregister_custom_op_symbolic = register_custom_op_symbolic
