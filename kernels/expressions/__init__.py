"""Kernels made from expressions (oneflow/core/expression.py), for every device."""
