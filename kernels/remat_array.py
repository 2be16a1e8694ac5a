"""Arrays of the device "cpu+remat": NumPy's, over memory that may be dropped and computed again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from oneflow.core.dtype import dtype_of
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, data_address
from oneflow.kernels.remat_memory import MEMORY, Host, Storage, keep_call

UNREAD = frozenset(
    (
        *("as_strided", "broadcast_to", "diagonal", "expand_dims", "may_share_memory", "moveaxis"),
        *("ravel", "reshape", "shares_memory", "squeeze", "swapaxes", "transpose", "view"),
    )
)
"""Functions that read no values if their result shares the memory of an argument."""
WRITING = frozenset(("fill", "itemset", "partition", "put", "resize", "sort"))
"""Methods that write to their array."""


class RematArray(NDArrayOperatorsMixin):
    """An array, or a view of one, in a storage. held: the NumPy array, whose values are there only
    between `read` and the next call.
    """

    __slots__ = ("held", "storage")

    held: Host
    storage: Storage

    def __init__(self, storage: Storage, held: Host) -> None:
        object.__setattr__(self, "storage", storage)
        object.__setattr__(self, "held", held)
        storage.arrays += 1

    def __del__(self) -> None:
        self.storage.forget_array()

    def read(self) -> Host:
        """Return the NumPy array with its values."""
        with MEMORY.lock:
            MEMORY.clock += 1
            MEMORY.bring([self.storage])
            MEMORY.use(self.storage)
        return self.held

    def written(self) -> Host:
        """Return the NumPy array to be written to."""
        with MEMORY.lock:
            MEMORY.clock += 1
            MEMORY.written(self.storage)
            MEMORY.use(self.storage)
        return self.held

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.held, name)
        if not callable(found):
            return found if not isinstance(found, np.ndarray) else self._seen(found)
        if name in WRITING:
            return getattr(self.written(), name)

        def run(*args: object, **keywords: object) -> object:
            return call(name, getattr(np.ndarray, name), (self, *args), keywords)

        return run

    def _seen(self, view: Host) -> RematArray:
        return RematArray(self.storage, view)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.held, name, value)

    def __array__(self, *_: object, **__: object) -> Host:
        raise TypeError("an array of cpu+remat is not converted implicitly: use to_host")

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **keywords: object
    ) -> object:
        return call(method, getattr(ufunc, method), inputs, keywords)

    def __array_function__(
        self,
        function: Callable[..., object],
        _: object,
        args: Sequence[object],
        keywords: Mapping[str, object],
    ) -> object:
        return call(function.__name__, function, args, keywords)

    def __getitem__(self, index: object) -> Any:
        seen = self.held[_lower(index)]
        if isinstance(seen, np.ndarray) and _lies_in(self.storage, seen):
            return self._seen(seen)
        return lift(self.read()[_lower(index)])

    def __setitem__(self, index: object, value: object) -> None:
        if index is Ellipsis and isinstance(value, RematArray) and self._is_replaced_by(value):
            self._replace(value)
            return
        with MEMORY.holding([*_storages(value), *_storages(index)]):
            self.written()[_lower(index)] = _lower(value)

    def _is_replaced_by(self, value: RematArray) -> bool:
        """Whether all values of the storage become those of `value`, and can be made again."""
        own, other = self.held, value.held
        is_whole = own.nbytes == self.storage.nbytes and own.flags.c_contiguous
        is_alike = (own.shape, own.dtype) == (other.shape, other.dtype)
        can_be_made = self.storage.call is not None and value.storage.call is not None
        return is_whole and is_alike and can_be_made and self.storage is not value.storage

    def _replace(self, value: RematArray) -> None:
        with MEMORY.holding([value.storage]):
            self.storage.split_off()
            MEMORY.bring([self.storage])
            np.copyto(self.held, value.held)
            keep_call(np.copyto, [self], [value])

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __index__(self) -> int:
        return operator.index(self.read().item())

    def __float__(self) -> float:
        return float(self.read())


def as_remat(x: Array) -> RematArray:
    """Return an array of this device under its own class: kernels see all arrays as NumPy's."""
    return cast(RematArray, x)


def _lower(value: object) -> Any:
    """Return the NumPy value of an array, also within lists, tuples and dicts."""
    if isinstance(value, RematArray):
        return value.read()
    if isinstance(value, dict):
        return {key: _lower(item) for key, item in value.items()}
    if type(value) is list:
        return [_lower(item) for item in value]
    if type(value) is tuple:
        return tuple(_lower(item) for item in value)
    return value


def _storages(value: object) -> list[Storage]:
    """Return the storages of the arrays in a value."""
    if isinstance(value, RematArray):
        return [value.storage]
    items: Iterable[object] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list | tuple):
        items = value
    return [storage for item in items for storage in _storages(item)]


def lift(value: object) -> Any:
    """Return the array over a NumPy value of its own memory, which is never dropped."""
    if isinstance(value, np.ndarray | np.generic):
        held = np.ascontiguousarray(value).reshape(value.shape)
        return RematArray(Storage(held.nbytes, held), held)
    if isinstance(value, tuple):
        items = [lift(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [lift(item) for item in value]
    return value


def _lies_in(storage: Storage, view: Host) -> bool:
    first = data_address(storage.buffer)
    return first <= data_address(view) < first + max(storage.nbytes, 1) and view.base is not None


def call(
    name: str,
    function: Callable[..., object],
    args: Sequence[object],
    keywords: Mapping[str, object],
) -> object:
    """Call a function of NumPy on arrays of this device."""
    if name in UNREAD:
        given = [x.held if isinstance(x, RematArray) else x for x in args]
        seen = function(*given, **keywords)
        if not isinstance(seen, np.ndarray):
            return seen
        owner = next(x for x in args if isinstance(x, RematArray))
        if _lies_in(owner.storage, seen):
            return RematArray(owner.storage, seen)
    outs = keywords.get("out")
    targets = [
        *(outs if isinstance(outs, tuple) else (outs,)),
        args[0] if name == "copyto" else None,
    ]
    with MEMORY.holding([*_storages(list(args)), *_storages(dict(keywords))]):
        for out in targets:
            if isinstance(out, RematArray):
                out.written()
        made = function(*map(_lower, args), **_lower(dict(keywords)))
        if outs is not None:
            return outs[0] if isinstance(outs, tuple) else outs
        return lift(made)


class _Function:
    """A function of NumPy for arrays of this device; `at` where it is a ufunc's."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.__name__, self._function = name, function

    def __call__(self, *args: object, **keywords: object) -> object:
        return call(self.__name__, self._function, args, keywords)

    def at(self, target: RematArray, *args: object) -> None:
        cast(np.ufunc, self._function).at(target.written(), *map(_lower, args))


class RematModule:
    """NumPy as the array module of the device."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self.__name__ = module, name

    def __getattr__(self, name: str) -> object:
        found = getattr(self._module, name)
        if type(found) is ModuleType:
            return RematModule(found, f"{self.__name__}.{name}")
        if isinstance(found, type) or not callable(found):
            return found
        return _Function(name, found)


class _Arrays(RematModule):
    """The module itself, whose new arrays take memory when they are first written."""

    def empty(
        self, shape: int | Iterable[int], dtype: object = np.float32, **_: object
    ) -> RematArray:
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        type_ = TensorType(dims, dtype_of(np.dtype(cast(str, dtype))))
        storage = Storage(type_.nbytes)
        return RematArray(storage, storage.whole(type_))

    def empty_like(self, x: Array, dtype: object = None, **_: object) -> RematArray:
        return self.empty(x.shape, x.dtype if dtype is None else dtype)


MODULE = cast(ArrayModule, _Arrays(np, "remat"))
