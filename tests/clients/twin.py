"""A second copy of a package, whose `import oneflow` gives PyTorch: the reference of the first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from . import regions


class _Torch(ModuleType):
    """PyTorch's module of the same name, under the name of ours."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        rest = name.partition(".")[2]
        try:
            self._theirs = importlib.import_module(f"torch.{rest}" if rest else "torch")
        except ImportError:
            self._theirs = None  # a path that only upstream has: its names come from above

    def __getattr__(self, name: str) -> object:
        if (self.__name__, name) in STANDS:
            return STANDS[self.__name__, name]
        if self._theirs is not None and hasattr(self._theirs, name):
            found = getattr(self._theirs, name)
            if isinstance(found, ModuleType) and found.__name__.startswith("torch"):
                found = _Torch(f"{self.__name__}.{name}")
                setattr(self, name, found)  # asked for outside `active` too
            return found
        raise AttributeError(f"{self.__name__}.{name} has no counterpart in PyTorch")


def _tensor(data: Any, **options: Any) -> torch.Tensor:
    """torch.tensor, which takes no list of NumPy arrays without dims."""
    if isinstance(data, list) and data and isinstance(data[0], np.ndarray):
        data = np.stack(data)
    return torch.tensor(data, **options)


def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, src: Any) -> torch.Tensor:
    """torch.scatter, of which a number is called the value."""
    value = {"src": src} if isinstance(src, torch.Tensor) else {"value": src}
    return torch.scatter(x, dim, index, **value)


def _conv2d(*args: Any, channel_pos: str = "channels_first", **options: Any) -> torch.Tensor:
    if channel_pos != "channels_first":
        raise NotImplementedError(f"PyTorch has no conv2d of {channel_pos}")
    return torch.nn.functional.conv2d(*args, **options)


def _matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> torch.Tensor:
    left, right = a.mT if transpose_a else a, b.mT if transpose_b else b
    return torch.matmul(left, right) * alpha


def _one_hot(
    label: torch.Tensor, num_classes: int, on_value: float = 1.0, off_value: float = 0.0
) -> torch.Tensor:
    hot = torch.nn.functional.one_hot(label, num_classes)
    return hot * (on_value - off_value) + off_value


STANDS: dict[tuple[str, str], object] = {
    ("oneflow", "tensor"): _tensor,
    ("oneflow.framework.tensor", "Tensor"): torch.Tensor,
    ("oneflow.nn.modules.utils", "_pair"): torch.nn.modules.utils._pair,
    ("oneflow", "cast"): lambda x, dtype: x.to(dtype),
    ("oneflow", "matmul"): _matmul,
    ("oneflow", "nms"): regions.nms,
    ("oneflow", "roi_align"): regions.roi_align,
    ("oneflow", "scatter"): _scatter,
    ("oneflow", "tensor_scatter_nd_update"): lambda x, index, update: x.index_put(
        index.unbind(-1), update
    ),
    ("oneflow", "_oneflow_internal"): SimpleNamespace(Tensor=torch.Tensor),
    ("oneflow.nn.functional", "conv2d"): _conv2d,
    ("oneflow.framework", "dtype"): SimpleNamespace(
        convert_oneflow_dtype_to_numpy_dtype=lambda dtype: torch.empty(0, dtype=dtype).numpy().dtype
    ),
    ("oneflow._C", "gather"): lambda x, index, axis: x.index_select(
        axis, index.reshape(-1)
    ).unflatten(axis, index.shape),
    ("oneflow._C", "one_hot"): _one_hot,
    ("oneflow._C", "pad"): torch.nn.functional.pad,
    ("oneflow._C", "cast"): lambda x, dtype: x.to(dtype),
    ("oneflow._C", "reshape"): torch.reshape,
    ("oneflow._C", "transpose"): lambda x, perm: x.permute(*perm),
    ("oneflow._C", "l1_loss"): torch.nn.functional.l1_loss,
    ("oneflow._C", "cross_entropy"): torch.nn.functional.cross_entropy,
    (
        "oneflow._C",
        "binary_cross_entropy_with_logits_loss",
    ): torch.nn.functional.binary_cross_entropy_with_logits,
}
"""Names that PyTorch lacks or has at another place."""

torch.Tensor.is_global = False  # read by code that takes both kinds of tensor
_numpy = torch.Tensor.numpy
torch.Tensor.numpy = lambda x, **options: _numpy(x.detach(), **options)  # of a variable as well


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "oneflow" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Torch(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to run: PyTorch was imported."""


def _of(*packages: str) -> dict[str, ModuleType]:
    return {n: m for n, m in list(sys.modules.items()) if n.split(".")[0] in packages}


class Twin:
    """The copy.  module: the one that `import package` gives inside `active()`, as `beside` are
    copied.
    """

    def __init__(self, package: str, *beside: str) -> None:
        self._names = (package, *beside, "oneflow")
        self._modules: dict[str, ModuleType] = {}
        with self.active():
            self.module = importlib.import_module(package)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let `import package` and `import oneflow` mean the copy and PyTorch."""
        ours, finder = _of(*self._names), _Finder()
        for name in ours:
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            self._modules = _of(*self._names)
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(ours)
