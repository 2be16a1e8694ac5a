"""Logical graphs written as ONNX models: a walk over the nodes, with a row for each op."""
