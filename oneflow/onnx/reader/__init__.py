"""ONNX models read as modules: a walk over the nodes, with a function for each operator."""
