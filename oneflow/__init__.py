"""OneFlow: a distributed deep-learning runtime built of actor services.

`import oneflow as flow`. Names are found where they are first used (oneflow/names.py), so the
import itself is quick.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from oneflow import names as _names

if TYPE_CHECKING:
    from oneflow.core.device import Device
    from oneflow.core.dtype import DType
    from oneflow.core.size import Size as Size
    from oneflow.tensor.tensor import Tensor as Tensor

    device = Device
    dtype = DType

__version__ = "0.1.0"

# gRPC reads it when it is imported: nothing of ours may be quicker. Its fork handlers cannot work
# beside a running loop: they warn at every fork (of a data loader, which uses no gRPC), and where
# TLS had imported gRPC first, every second child of a daemon died in them before it was the rank.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_table = _names.table()


def __getattr__(name: str) -> Any:
    entry = _table.get(name)
    if entry is not None:
        found = getattr(importlib.import_module(entry[0]), entry[1])
    elif name in _names.MODULES and importlib.util.find_spec(f"oneflow.{name}") is not None:
        found = importlib.import_module(f"oneflow.{name}")
    else:
        raise AttributeError(f"module 'oneflow' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*_table, *_names.MODULES, "tensor", "__version__"})


class _Facade(types.ModuleType):
    """`oneflow.tensor` is a function to users and a package to us: importing the package must not
    hide the function.
    """

    @property
    def tensor(self) -> Any:
        from oneflow.tensor.creation import tensor

        return tensor

    @tensor.setter
    def tensor(self, package: types.ModuleType) -> None:
        """What `import oneflow.tensor` would bind; it stays in sys.modules, where imports find
        it.
        """


sys.modules[__name__].__class__ = _Facade
