"""Checkpoints of other programs: PyTorch's zip files, and upstream's pickled files. Read without
running their code.
"""

from __future__ import annotations

import argparse
import datetime
import io
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import CheckpointError, DTypeError
from oneflow.core.size import Size
from oneflow.io.foreign_objects import ForeignObjects, RefusedError
from oneflow.io.safe_names import Names
from oneflow.io.unpickle import Name, Reader, SetState, Shell
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor, wrap

_STORAGES = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
    "ComplexFloatStorage": np.complex64,
    "ComplexDoubleStorage": np.complex128,
    "UntypedStorage": np.uint8,
}
_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}


_ZIP_ERRORS = (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, RuntimeError)
"""Errors of `zipfile` for archives that are none; RuntimeError: encrypted, or of no known form."""


def refuse(name: Name) -> RefusedError:
    return RefusedError(
        f"load: the file asks for {name}, which is not read from files: only containers, numbers, "
        "strings and tensors are"
    )


def load_torch(data: bytes, names_of_code: Names | None = None) -> Any:
    """Read a zip file of `torch.save`. Tensors come as local CPU tensors."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        names = archive.namelist()
    except _ZIP_ERRORS as error:
        raise CheckpointError("load: the zip file is damaged") from error
    roots = [n[: -len("data.pkl")] for n in names if n.endswith("data.pkl")]
    if len(roots) != 1:
        raise CheckpointError(
            "load: a zip file without exactly one data.pkl is no PyTorch checkpoint"
        )
    root = roots[0]
    if f"{root}byteorder" in names and _member(archive, f"{root}byteorder", len(data)) != b"little":
        raise CheckpointError("load: the checkpoint was written on a big-endian machine")
    storages = _Storages(archive, root, len(data))
    reader = _meanings(names_of_code).reader(storages.find)
    return _finish(reader.read(_member(archive, f"{root}data.pkl", len(data))))


def _meanings(names: Names | None, set_state: SetState | None = None) -> ForeignObjects:
    return ForeignObjects(names or Names(), _make, set_state or _set_state, _constant)


def load_torch_legacy(data: bytes, names_of_code: Names | None = None) -> Any:
    """Read a file of `torch.save` from before it wrote zip files: pickles one after another, of
    which the fourth is the object, then the storages' names, then each storage behind its size.
    """
    file = io.BytesIO(data)
    found: dict[str, tuple[np.dtype[Any], int]] = {}
    filled: dict[str, Array] = {}

    def storage(persistent_id: object) -> Array:
        if not isinstance(persistent_id, tuple) or len(persistent_id) not in (5, 6):
            raise CheckpointError(f"load: unknown persistent id {str(persistent_id)[:80]}")
        _, kind, key, _, count, *view = persistent_id
        if not isinstance(kind, np.dtype) or type(count) is not int or any(view):
            raise CheckpointError(f"load: unknown storage {str(persistent_id)[:80]}")
        if not 0 <= count * kind.itemsize <= len(data):
            raise CheckpointError(f"load: storage {key!r} is larger than the file")
        found[str(key)] = kind, count
        return filled.get(str(key), np.empty(0, kind) if filled else np.zeros(count, kind))

    def reader() -> Reader:
        return _meanings(names_of_code).reader(storage)

    for _ in range(3):  # magic number, version, sizes of C's types
        reader().read(file)
    begin = file.tell()
    reader().read(file)  # once for the storages that there are
    for key in _keys(reader().read(file), found):
        kind, count = found[key]
        size = int.from_bytes(file.read(8), "little")
        raw = file.read(count * kind.itemsize)
        if size != count or len(raw) != count * kind.itemsize:
            raise CheckpointError(f"load: storage {key} is cut off")
        filled[key] = np.frombuffer(raw, kind)
    file.seek(begin)
    return _finish(reader().read(file))  # and again with what they hold


LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of such a file: a number."""


def _keys(value: object, found: dict[str, Any]) -> list[str]:
    keys = [str(key) for key in value] if isinstance(value, list) else []
    if set(keys) != found.keys():
        raise CheckpointError("load: the file does not hold the storages that it names")
    return keys


def load_upstream(
    data: bytes, folder: Path | None = None, names_of_code: Names | None = None
) -> Any:
    """Read a pickle of upstream's `save`: {"protocol_version": 1, "oneflow": ..., "data": object}.

    folder: of tensors kept outside the pickle. Raises CheckpointError if it is no such file.
    """

    def no_storage(_: object) -> NoReturn:
        raise CheckpointError("load: the pickle refers to something outside of it")

    def set_state(value: object, state: object) -> object:
        if isinstance(value, Shell) and isinstance(state, dict) and "path" in state:
            return _from_folder(folder, state["path"])
        return _set_state(value, state)

    content = _meanings(names_of_code, set_state).reader(no_storage).read(data)
    if (
        not isinstance(content, dict)
        or content.get("protocol_version") != 1
        or "data" not in content
    ):
        raise CheckpointError(
            "load: the pickle is no checkpoint of OneFlow: it lacks protocol_version 1 or data"
        )
    return _finish(content["data"])


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """One file of the archive; stored as it is, so it cannot be larger than the archive."""
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
            raise CheckpointError(f"load: {name} is compressed or larger than its archive")
        return archive.read(info)
    except CheckpointError:
        raise
    except _ZIP_ERRORS as error:
        raise CheckpointError(f"load: {name} is missing or damaged") from error


class _Storages:
    """The data of the archive's tensors, read when first asked for."""

    def __init__(self, archive: zipfile.ZipFile, root: str, limit: int) -> None:
        self._archive, self._root, self._limit = archive, root, limit
        self._read: dict[str, Array] = {}

    def find(self, persistent_id: object) -> Array:
        if (
            not isinstance(persistent_id, tuple)
            or len(persistent_id) != 5
            or persistent_id[0] != "storage"
        ):
            raise CheckpointError(f"load: unknown persistent id {str(persistent_id)[:80]}")
        _, kind, key, _, count = persistent_id
        if not isinstance(kind, np.dtype) or not isinstance(key, str) or not isinstance(count, int):
            raise CheckpointError(f"load: unknown storage {str(persistent_id)[:80]}")
        if key not in self._read:
            raw = _member(self._archive, f"{self._root}data/{key}", self._limit)
            self._read[key] = np.frombuffer(raw, dtype=np.uint8).copy()
        raw_bytes = self._read[key]
        if raw_bytes.nbytes != count * kind.itemsize:
            raise CheckpointError(
                f"load: storage {key} has {raw_bytes.nbytes} bytes, not {count * kind.itemsize}"
            )
        return raw_bytes.view(kind)


def _constant(name: Name) -> object:
    """A dtype or a storage class named as a value."""
    if (name.module == "torch" and name.name in _STORAGES) or (
        name.module == "torch.storage" and name.name in _STORAGES
    ):
        return np.dtype(_STORAGES[name.name])
    if name.module == "torch._utils" or (name.module, name.name) in _TENSOR_CLASSES:
        return name  # what a tensor with attributes was made by
    if name.module in ("torch", "oneflow"):
        try:
            return dtype_of(_NAMES.get(name.name, name.name))
        except DTypeError:
            raise refuse(name) from None
    if (name.module, name.name) == ("numpy", "ndarray"):
        return np.ndarray
    raise refuse(name)


_TENSOR_CLASSES = (("torch", "Tensor"), ("torch._tensor", "Tensor"))


def _with_attributes(x: object, state: object) -> object:
    """A tensor with a user's own attributes, as PyTorch keeps them."""
    if not isinstance(x, Tensor) or not isinstance(state, dict):
        raise CheckpointError(f"load: attributes {str(state)[:80]} of a {type(x).__name__}")
    vars(x).update({str(name): _finish(value) for name, value in state.items()})
    return x


def _make(name: Name, args: tuple[Any, ...]) -> object:
    """Calls that stand for tensors, sizes, devices and NumPy arrays."""
    module, function = name.module, name.name
    if module == "torch._utils" and function in ("_rebuild_tensor_v2", "_rebuild_tensor"):
        return wrap(_strided(*args[:4]))
    if module == "torch._utils" and function == "_rebuild_tensor_v3":
        return wrap(_strided(_as_dtype(args[0], args[6]), *args[1:4]))
    if module == "torch._utils" and function == "_rebuild_parameter":
        return wrap_array(args[0]).requires_grad_(bool(args[1]))
    if module == "torch._utils" and function == "_rebuild_parameter_with_state":
        made = wrap_array(args[0]).requires_grad_(bool(args[1]))
        return _with_attributes(made, args[3])
    if module == "torch._tensor" and function == "_rebuild_from_type_v2":
        maker, kind, inner, state = args
        known = isinstance(maker, Name) and maker.module == "torch._utils"
        if not known or not isinstance(kind, Name) or not isinstance(inner, tuple):
            raise refuse(name)
        return _with_attributes(_make(maker, inner), state)
    if (module, function) in _PLAIN:
        return _PLAIN[module, function](*args)
    if (module, function) in (("torch", "Size"), ("oneflow", "Size")):
        return Size(tuple(args[0]))
    if (module, function) in (("torch", "device"), ("oneflow", "device")):
        return ":".join(str(a) for a in args)
    if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        return _numpy_call(name, args)
    if (module, function) == ("numpy", "dtype"):
        return np.dtype(_dtype_code(args[0]))
    if (module, function) == ("_codecs", "encode") and args[1:] == ("latin1",):
        return str(args[0]).encode("latin1")
    if module.split(".")[0] == "oneflow" and function in ("Tensor", "Parameter"):
        return Shell(name, args)
    raise refuse(name)


def _path(*parts: object) -> Path:
    return Path(*map(str, parts))


def _moment(kind: Callable[..., Any], size: int) -> Callable[..., Any]:
    """Points in time, which pickles hold as bytes."""

    def make(data: object, *zone: object) -> Any:
        if not isinstance(data, bytes) or len(data) != size or zone:
            raise CheckpointError(f"load: no {kind.__name__} of {str(data)[:80]}")
        return kind(data)

    return make


_PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("types", "SimpleNamespace"): argparse.Namespace,
    **{
        (module, kind): _path
        for module in ("pathlib", "pathlib._local")
        for kind in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
    ("datetime", "datetime"): _moment(datetime.datetime, 10),
    ("datetime", "date"): _moment(datetime.date, 4),
    ("datetime", "timedelta"): datetime.timedelta,
}
"""Calls of the library that make plain values."""


def _as_dtype(storage: object, dtype: object) -> Array:
    """A storage of bytes as numbers of a dtype that has no storage of its own."""
    if not isinstance(storage, np.ndarray) or not isinstance(dtype, DType):
        raise CheckpointError("load: a tensor without a storage or a dtype")
    if storage.nbytes % dtype.np.itemsize:
        raise CheckpointError(f"load: a storage of {storage.nbytes} bytes is not of {dtype}")
    return storage.view(np.uint8).view(dtype.np)


def _numpy_call(name: Name, args: tuple[Any, ...]) -> object:
    if name.name == "_reconstruct":
        return Shell(name, args)
    if name.name == "scalar" and isinstance(args[0], np.dtype) and not args[0].hasobject:
        return np.frombuffer(args[1], dtype=args[0], count=1)[0].item()
    raise refuse(name)


def _dtype_code(code: object) -> str:
    if (
        not isinstance(code, str)
        or not code.lstrip("<>|=")[:1]
        or code.lstrip("<>|=")[0] not in "biufcV?"
    ):
        raise CheckpointError(f"load: NumPy dtype {code!r} is not read from files")
    return code


def _set_state(value: object, state: object) -> object:
    if isinstance(value, np.dtype) and isinstance(state, tuple):
        order: Any = state[1] if len(state) > 1 and state[1] in ("<", ">", "|", "=") else "="
        return value if order == "|" else value.newbyteorder(order)
    if isinstance(value, Shell) and value.cls.name == "_reconstruct" and isinstance(state, tuple):
        return _numpy_array(state)
    if (
        isinstance(value, Shell)
        and isinstance(state, dict)
        and isinstance(state.get("data"), np.ndarray)
    ):
        array = state["data"]
        dtype = state.get("dtype")
        return wrap(np.array(array if dtype is None else array.astype(dtype_of(dtype).np)))
    if isinstance(value, argparse.Namespace) and isinstance(state, dict):
        value.__dict__.update({str(name): part for name, part in state.items()})
        return value
    if isinstance(value, Tensor):
        return value  # PyTorch keeps attributes of subclasses here; a tensor is its values
    raise CheckpointError(
        f"load: the pickle gives a state to a {type(value).__name__}, which has none"
    )


def _numpy_array(state: tuple[Any, ...]) -> Array:
    _, shape, dtype, is_fortran, raw = state
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(raw, bytes):
        raise CheckpointError("load: a NumPy array of objects is not read from files")
    if len(raw) != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise CheckpointError(f"load: a NumPy array of {dtype}{list(shape)} with {len(raw)} bytes")
    whole = np.frombuffer(raw, dtype=dtype).reshape(shape, order="F" if is_fortran else "C")
    return np.array(whole)


def _strided(storage: object, offset: int, size: Sequence[int], stride: Sequence[int]) -> Array:
    """A tensor's elements in its storage. Every element must lie inside."""
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise CheckpointError("load: a tensor without a storage")
    numbers = (offset, *size, *stride)
    if any(type(n) is not int or n < 0 for n in numbers):
        raise CheckpointError(f"load: a tensor with offset {offset}, size {size}, stride {stride}")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and last >= storage.size:
        raise CheckpointError(
            f"load: a tensor reaches element {last} of a storage of {storage.size}"
        )
    if math.prod(size) > max(1 << 20, 64 * storage.size):
        raise CheckpointError(
            f"load: a tensor of size {list(size)} over a storage of {storage.size} elements"
        )
    strides = tuple(s * storage.itemsize for s in stride)
    view = np.lib.stride_tricks.as_strided(
        storage[offset:] if 0 not in size else storage, tuple(size), strides
    )
    return np.array(view)


def wrap_array(value: Tensor | Array) -> Tensor:
    return wrap(value) if isinstance(value, np.ndarray) else value


def _finish(value: object) -> object:
    """The value, if nothing in it was left unmade. Arrays stay arrays."""
    if isinstance(value, argparse.Namespace):
        _finish(value.__dict__)
        return value
    if isinstance(value, Shell):
        raise refuse(value.cls)
    if isinstance(value, dict):
        for key in list(value):
            value[key] = _finish(value[key])
        return value
    if isinstance(value, list):
        value[:] = [_finish(v) for v in value]
        return value
    return tuple(_finish(v) for v in value) if type(value) is tuple else value


def _from_folder(folder: Path | None, name: object) -> Tensor:
    """A tensor that upstream kept as raw bytes (`out`) beside its shape and dtype (`meta`)."""
    if folder is None or not isinstance(name, str) or "/" in name or name in ("", ".", ".."):
        raise CheckpointError(f"load: the pickle refers to a tensor in {name!r}")
    shape, dtype = _parse_meta((folder / name / "meta").read_text())
    raw = (folder / name / "out").read_bytes()
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"load: {name}/out has {len(raw)} bytes, but {dtype}{list(shape)} has more or fewer"
        )
    return wrap(np.frombuffer(raw, dtype=dtype).reshape(shape).copy())


_PROTO_DTYPES = {
    "kChar": np.int8,
    "kFloat": np.float32,
    "kDouble": np.float64,
    "kInt8": np.int8,
    "kInt32": np.int32,
    "kInt64": np.int64,
    "kUInt8": np.uint8,
    "kFloat16": np.float16,
    "kBFloat16": ml_dtypes.bfloat16,
    "kBool": np.bool_,
    "kInt16": np.int16,
    "kComplex64": np.complex64,
    "kComplex128": np.complex128,
}


def _parse_meta(text: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The text form of a shape and a data type: `dim: 2` lines and `data_type: kFloat`."""
    dims: list[int] = []
    dtype: Any = None
    for line in text.replace("{", "\n").replace("}", "\n").splitlines():
        key, _, value = line.strip().partition(":")
        if key == "dim":
            dims.extend(int(v) for v in value.strip(" []").split(","))
        elif key == "data_type":
            dtype = _PROTO_DTYPES.get(value.strip())
    if dtype is None or min(dims, default=0) < 0:
        raise CheckpointError(f"load: no shape and dtype in {text[:80]!r}")
    return tuple(dims), np.dtype(dtype)
