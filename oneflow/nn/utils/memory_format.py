"""Memory formats of the weights of whole models, which kernels here do not tell apart."""

from __future__ import annotations

from typing import TypeVar

from oneflow.nn.module import Module

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]

M = TypeVar("M", bound=Module)


def convert_conv2d_weight_memory_format(module: M, memory_format: object) -> M:
    """The module itself: a memory format changes nothing here."""
    return module.to(memory_format=memory_format)


convert_conv3d_weight_memory_format = convert_conv2d_weight_memory_format
