"""Mixed precision: inside `autocast` matrix products and convolutions run in float16 or bfloat16.

An execution mode above the one that runs ops: it casts their inputs and hands them on, so that
gradients, traced graphs and global tensors see casts like any other op, and code outside of such a
block pays nothing. An op that lowers (core/precision.py) runs in the block's dtype, one that widens
on the device in float32, any other in the dtype of its inputs, the widest of them if they differ.

Functions that are made of several ops, such as most losses, name in the public table the cast of
their tensors before the first op (`autocast=`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from oneflow.core.device import is_device_type
from oneflow.core.dispatch import Mode, ModeAbove, current_mode, swap_mode, use_mode
from oneflow.core.dtype import DType, DTypeLike, bfloat16, dtype_of, float16, float32
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.precision import precision_of
from oneflow.ops.cast import cast
from oneflow.tensor.grad_mode import is_grad_enabled, run_inside
from oneflow.tensor.tensor import Tensor, device_type

__all__ = [
    "autocast",
    "autocast_decorator",
    "clear_autocast_cache",
    "get_autocast_cpu_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_cpu_dtype",
    "set_autocast_enabled",
    "set_autocast_gpu_dtype",
]

P = ParamSpec("P")
R = TypeVar("R")

WIDTHS = {float16: 0, bfloat16: 0, float32: 1}
"""The dtypes that are cast; all others stay."""

DEFAULTS = {"cuda": float16, "cpu": bfloat16}


def _rules(kind: str) -> str:
    """The kind of device whose rules are in force on another: registered kinds cast as GPUs do."""
    return "cpu" if kind == "cpu" else "cuda"


class _Settings(threading.local):
    def __init__(self) -> None:
        self.dtypes = dict(DEFAULTS)
        self.caches = True


_settings = _Settings()


class Autocasting(ModeAbove):
    """Casts the inputs of ops, then lets another mode run them.

    dtypes: device type -> the lower dtype there.  cache: casts of parameters, made once; of the
    outermost block, or None.
    """

    replays = False

    def __init__(self, inner: Mode, dtypes: dict[str, DType], cache: dict[Any, Any] | None) -> None:
        super().__init__(inner)
        self.dtypes, self.cache = dtypes, cache

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Run an op on cast inputs."""
        wanted = self._wanted(op, inputs, attrs)
        if wanted is not None:
            inputs = tuple(self._as(x, wanted) for x in inputs)
        return self.inner.run(op, inputs, attrs)

    def _wanted(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> DType | None:
        """The dtype in which an op is to run; None to leave its inputs as they are."""
        found = [x for x in inputs if isinstance(x, Tensor) and x.meta.dtype in WIDTHS]
        where = device_type(found[0]) if found else ""
        lower = self.dtypes.get(where)
        if lower is None or op.mutates:
            return None
        part = precision_of(op, tuple([x.meta for x in inputs]), op.defaults | attrs)
        if part == "lower":
            return lower
        if _rules(where) in (
            op.widens if op.widens is not None else ("cuda",) if part == "keep" else ()
        ):
            return float32
        kinds = {x.meta.dtype for x in found}
        return None if len(kinds) == 1 else float32

    def _as(self, x: object, dtype: DType) -> Any:
        if not isinstance(x, Tensor) or x.meta.dtype is dtype or x.meta.dtype not in WIDTHS:
            return x
        is_parameter = x.is_leaf and x.requires_grad and x.meta.dtype is float32
        if self.cache is None or not is_parameter:
            return cast(x, dtype=dtype)
        key = (id(x), dtype, x._version[0], is_grad_enabled())
        if key not in self.cache:
            self.cache[key] = (x, cast(x, dtype=dtype))  # x stays, so that its id stays its own
        return self.cache[key][1]

    def run_cast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        how: tuple[str, ...],
    ) -> Any:
        """Run a function of several ops, which are as if outside of the block once its tensors are
        cast. how: see `Row.autocast`.
        """
        given = *args, *kwargs.values()
        found = [x for x in given if isinstance(x, Tensor) and x.meta.dtype in WIDTHS]
        where = device_type(found[0]) if found else ""
        lower = self.dtypes.get(where)
        rules = _rules(where)
        is_lower = "lower" in how or f"lower_{rules}" in how
        is_cast = is_lower or rules in how
        if lower is None or not (is_cast or "widest" in how or "outside" in how):
            return function(*args, **kwargs)
        wanted = lower if is_lower else float32
        if is_cast or ("widest" in how and len({x.meta.dtype for x in found}) > 1):
            args = tuple(self._as(x, wanted) for x in args)
            kwargs = {name: self._as(x, wanted) for name, x in kwargs.items()}
        with use_mode(self.inner):
            return function(*args, **kwargs)

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Gradients are computed in the dtypes in which their ops ran, so nothing is cast."""
        with use_mode(self.inner), self.inner.backward_pass():
            yield

    def below(self, make: Callable[[Mode], Mode]) -> Mode:
        """Casts come first; those of before are not those of the new mode."""
        cache: dict[Any, Any] | None = None if self.cache is None else {}
        return Autocasting(self.inner.below(make), self.dtypes, cache)

    def afresh(self) -> Autocasting:
        return Autocasting(self.inner, self.dtypes, None if self.cache is None else {})


def _region() -> Autocasting | None:
    mode = current_mode()
    return mode if isinstance(mode, Autocasting) else None


def _begin(changes: dict[str, DType | None], caches: bool) -> Mode | None:
    """Put another choice of dtypes in force in this thread; None: a device without any.

    Returns the mode that `swap_mode` takes to go back.
    """
    region = _region()
    dtypes = {**(region.dtypes if region else {}), **changes}
    lower = {device: dtype for device, dtype in dtypes.items() if dtype is not None}
    inner = region.inner if region else current_mode()
    if inner.choosing_dtypes is not None:
        inner = inner.choosing_dtypes()
    if not lower:
        return swap_mode(inner)
    cache = region.cache if region and region.cache is not None else {}
    return swap_mode(Autocasting(inner, lower, cache if caches else None))


class autocast:
    """Run ops in mixed precision inside a with-block or a decorated function.

    device_type: "cuda", "cpu" or a registered kind.  dtype: float16 or bfloat16; by default
    float16 on GPUs, bfloat16 elsewhere.  enabled: False for ordinary precision inside such a block.
    cache_enabled: cast each parameter once a block. Raises RuntimeError for another device; another
    dtype warns and changes nothing.
    """

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: DTypeLike | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not is_device_type(device_type):
            raise RuntimeError(
                f"User specified an unsupported autocast device_type {device_type!r}; it is "
                "'cuda', 'cpu' or a registered kind"
            )
        self.device = device_type
        self.fast_dtype = (
            _settings.dtypes.get(device_type, bfloat16) if dtype is None else dtype_of(dtype)
        )
        self._enabled = enabled
        self._cache_enabled = _settings.caches if cache_enabled is None else cache_enabled
        if enabled and self.fast_dtype not in (float16, bfloat16):
            warnings.warn(
                f"autocast: {self.fast_dtype} is not supported, only float16 and bfloat16; "
                "autocast is disabled",
                stacklevel=2,
            )
            self._enabled = False
        self._before: list[Mode | None] = []

    def __enter__(self) -> autocast:
        lower = self.fast_dtype if self._enabled else None
        self._before.append(_begin({self.device: lower}, self._cache_enabled))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        swap_mode(self._before.pop())

    def __call__(self, func: Callable[P, R]) -> Callable[P, R]:
        return autocast_decorator(self, func)


def autocast_decorator(autocast_instance: autocast, func: Callable[P, R]) -> Callable[P, R]:
    """`func`, run inside the block."""

    return run_inside(lambda: autocast_instance, func)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Is this thread inside such a block: for one device, or for any?"""
    region = _region()
    return region is not None and (device_type is None or device_type in region.dtypes)


def set_autocast_enabled(enabled: bool) -> None:
    """Begin mixed precision in this thread, on GPUs and CPUs, or end it."""
    chosen = {d: t if enabled else None for d, t in _settings.dtypes.items()}
    _begin(chosen, _settings.caches)


def get_autocast_gpu_dtype() -> DType:
    """The dtype of blocks for GPUs that name none."""
    return _settings.dtypes["cuda"]


def get_autocast_cpu_dtype() -> DType:
    """The dtype of blocks for CPUs that name none."""
    return _settings.dtypes["cpu"]


def set_autocast_gpu_dtype(dtype: DTypeLike) -> None:
    """Choose the dtype of blocks for GPUs that name none."""
    _settings.dtypes["cuda"] = dtype_of(dtype)


def set_autocast_cpu_dtype(dtype: DTypeLike) -> None:
    """Choose the dtype of blocks for CPUs that name none."""
    _settings.dtypes["cpu"] = dtype_of(dtype)


def is_autocast_cache_enabled() -> bool:
    """Do blocks that do not say so cast each parameter once?"""
    return _settings.caches


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Choose whether blocks that do not say so cast each parameter once."""
    _settings.caches = enabled


def clear_autocast_cache() -> None:
    """Forget the casts of parameters that the block around has made."""
    region = _region()
    if region is not None and region.cache is not None:
        region.cache.clear()
