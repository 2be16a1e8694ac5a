"""Errors of writing and reading ONNX files."""

from __future__ import annotations

from oneflow.core.errors import GraphError


class OnnxExportError(GraphError):
    """A graph, or an op of one, that has no form in ONNX."""


class OnnxImportError(GraphError):
    """An ONNX model that cannot be read, or a node of one that has no counterpart here."""
