"""Python values as bytes (msgpack), so that they come out as they went in, and no code with them.

None, booleans, ints of any size, floats, strings, bytes, lists, tuples, dicts, NumPy arrays and
scalars without objects, local tensors. Subclasses of these come out as the plain type. A type
that msgpack does not know is an extension: a code, and msgpack inside it.
"""

from __future__ import annotations

import reprlib
from typing import Any, cast

import numpy as np

from oneflow.core.dtype import dtype_of
from oneflow.core.errors import DTypeError, OneFlowError, TransportError
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import to_host
from oneflow.tensor.tensor import Tensor, wrap

MAX_NBYTES = 1 << 30
"""Largest size of one value; what is larger should be a tensor."""

MAX_DEPTH = 100
"""Most levels of containers in containers. A container in itself is deeper."""

_TUPLE, _INT, _TEXT, _PAIRS, _ARRAY, _SCALAR, _TENSOR = range(1, 8)
_LEAST_INT, _END_INT = -(1 << 63), 1 << 64
"""Integers that msgpack knows: the least, and the first that is too large."""

_NUMPY_KINDS = "biufcSUmM"
_NATURAL = frozenset((type(None), bool, float, bytes))
_KEYS = (type(None), bool, int, float, str, bytes, tuple)
_KINDS = (
    "only None, booleans, numbers, strings, bytes, lists, tuples, dicts with such keys, NumPy "
    "arrays and local tensors travel"
)

Path = tuple[Any, ...]
"""(path of the container, key), of the outermost value ()."""


def encode(value: object) -> bytes:
    """Raises DTypeError that says where in `value` something cannot travel."""
    import msgspec

    data = msgspec.msgpack.encode(_plain(value, (), 0))
    if len(data) > MAX_NBYTES:
        raise DTypeError(
            f"the value takes {len(data)} bytes, but at most {MAX_NBYTES} travel at once; large "
            "data go faster as tensors"
        )
    return data


def decode(data: bytes | memoryview) -> Any:
    """The inverse of `encode`. Raises TransportError for bytes that are not of `encode`."""
    import msgspec

    try:
        return msgspec.msgpack.decode(data, ext_hook=_from_extension)
    except OneFlowError:
        raise
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise TransportError(f"a peer sent what is no encoded value: {error}") from error


# ---- to what msgpack knows -----------------------------------------------------------------------


def _plain(value: object, path: Path, depth: int) -> Any:
    kind = type(value)
    if kind in _NATURAL or (kind is str and cast(str, value).isascii()):
        return value
    if kind is int:
        return _int(cast(int, value))
    if isinstance(value, (np.generic, np.ndarray)):
        return _array(value, path)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _int(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    if depth > MAX_DEPTH:
        raise DTypeError(f"{_named(path)} is in more than {MAX_DEPTH} containers")
    if isinstance(value, (list, tuple)):
        entries = [_plain(entry, (path, i), depth + 1) for i, entry in enumerate(value)]
        return entries if isinstance(value, list) else _extension(_TUPLE, entries)
    if isinstance(value, dict):
        if all(type(key) is str and key.isascii() for key in value):  # as most are
            return {key: _plain(entry, (path, key), depth + 1) for key, entry in value.items()}
        return _dict(value, path, depth)
    if isinstance(value, Tensor):
        return _tensor(value, path)
    raise _refused(value, path)


def _dict(value: dict[Any, Any], path: Path, depth: int) -> Any:
    flat: list[Any] = []
    for key, entry in value.items():
        if not isinstance(key, _KEYS) or isinstance(key, np.generic):
            name = f"{_named(path)} has the key {reprlib.repr(key)}"
            raise DTypeError(f"{name} of type {type(key).__name__}; {_KINDS}")
        flat += _plain(key, (path, key), depth + 1), _plain(entry, (path, key), depth + 1)
    import msgspec

    keys = flat[::2]
    if any(isinstance(key, msgspec.msgpack.Ext) for key in keys):  # no key of msgpack
        return _extension(_PAIRS, flat)
    return dict(zip(keys, flat[1::2], strict=True))


def _int(value: int) -> Any:
    if _LEAST_INT <= value < _END_INT:
        return value
    nbytes = value.bit_length() // 8 + 1
    return _extension(_INT, value.to_bytes(nbytes, "little", signed=True))


def _text(value: str) -> Any:
    text = str(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair, as names of files may have
        return _extension(_TEXT, text.encode("utf-8", "surrogatepass"))
    return text


def _array(value: Array | np.generic, path: Path) -> Any:
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
        raise _refused(value, path)
    array = np.asarray(value)
    code = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
    return _extension(code, [_dtype_text(value, path), list(array.shape), array.tobytes()])


def _dtype_text(value: Array | np.generic, path: Path) -> str:
    """Return a dtype's name as NumPy says it; of dtypes that NumPy does not know, such as bfloat16,
    ours.
    """
    if value.dtype.kind in _NUMPY_KINDS:
        return str(value.dtype.str)
    try:
        return dtype_of(value.dtype).name
    except DTypeError:
        raise _refused(value, path, f" of {value.dtype}") from None


def _tensor(x: Tensor, path: Path) -> Any:
    if x.value is not None:
        raise DTypeError(f"{_named(path)} is a value of an nn.Graph under construction")
    if x.is_global:
        raise DTypeError(f"{_named(path)} is a global tensor, which moves with to_global()")
    array = to_host(x._array)
    head = [x.device.type, _dtype_text(array, path), list(array.shape)]
    return _extension(_TENSOR, [*head, array.tobytes()])


def _extension(code: int, inside: object) -> Any:
    import msgspec

    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(inside))


def _refused(value: object, path: Path, more: str = "") -> DTypeError:
    return DTypeError(f"{_named(path)} is of type {type(value).__name__}{more}; {_KINDS}")


def _named(path: Path) -> str:
    """`the value['a'][0]`."""
    keys: list[str] = []
    while path:
        path, key = path
        keys.append(f"[{reprlib.repr(key)}]")
    if len(keys) > 8:
        keys = [*keys[:4], "...", *keys[-4:]]
    return "the value" + "".join(reversed(keys))


# ---- and back ------------------------------------------------------------------------------------


def _from_extension(code: int, data: memoryview) -> Any:
    inside = decode(data)
    if code == _TUPLE:
        return tuple(inside)
    if code == _INT:
        return int.from_bytes(inside, "little", signed=True)
    if code == _TEXT:
        return inside.decode("utf-8", "surrogatepass")
    if code == _PAIRS:
        return dict(zip(inside[::2], inside[1::2], strict=True))
    if code in (_ARRAY, _SCALAR):
        array = _made_array(*inside)
        return array if code == _ARRAY else array[()]
    if code == _TENSOR:
        device, *described = inside
        x = wrap(_made_array(*described))
        return x if device == "cpu" else x.to(device)
    raise ValueError(f"extension {code}")


def _made_array(name: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    """Return an array of its own memory, so that it can be written."""
    dtype = np.dtype(name) if name[0] in "<>|=" else dtype_of(name).np
    if dtype.hasobject or dtype.fields:
        raise ValueError(f"arrays of {dtype}")
    made: np.ndarray[Any, Any] = np.ndarray(tuple(shape), dtype, buffer=data).copy()
    return made
