"""The methods that the public table gives to Tensor, for type checkers: see the stub beside it."""

from __future__ import annotations


class TableMethods:
    """Base of Tensor. `oneflow.surfaces.install_methods` attaches the methods to Tensor itself."""

    __slots__ = ()
