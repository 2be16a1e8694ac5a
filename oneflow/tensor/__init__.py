"""Tensors: the class, how ops run on them eagerly, and how they are made, printed and indexed."""

import oneflow.functional  # noqa: F401  (gives Tensor its methods)
