"""`flow.save` and `flow.load`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.device import Device
from oneflow.core.errors import CheckpointError
from oneflow.core.metrics import METRICS
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.io import container
from oneflow.io.foreign import load_torch, load_upstream
from oneflow.io.tree import Encoder, decode
from oneflow.tensor.tensor import Tensor, wrap

VERSION = "1"
FOLDER_FILE = "checkpoint.safetensors"


def save(
    obj: Any,
    path_or_buffer: Any,
    global_dst_rank: int | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Writes containers, plain values and tensors to a file, a folder (save_as_external_data) or an
    open binary file.

    With global tensors inside, all ranks call it and rank `global_dst_rank` writes. Raises
    CheckpointError for what has no form in a checkpoint. The file is in the safetensors format; the
    structure is JSON in its metadata.
    """
    writes = global_dst_rank is None or current_config().rank == global_dst_rank
    encoder = Encoder(lambda x: _whole(x, global_dst_rank))
    tree = encoder.encode(obj)
    if not writes:
        return
    METRICS.checkpoint("write", sum(a.nbytes for a in encoder.arrays.values()))
    metadata = {"oneflow": VERSION, "tree": json.dumps(tree, separators=(",", ":"))}
    if hasattr(path_or_buffer, "write"):
        container.write(path_or_buffer, encoder.arrays, metadata)
        return
    path = Path(os.fspath(path_or_buffer))
    if save_as_external_data:
        path.mkdir(parents=True, exist_ok=True)
        path = path / FOLDER_FILE
    container.write(path, encoder.arrays, metadata)


def _whole(x: Tensor, global_dst_rank: int | None) -> np.ndarray[Any, Any]:
    """All of a tensor; of a global one every rank takes part, and those that do not write get
    nothing.
    """
    if x.is_global:
        if global_dst_rank is None:
            raise CheckpointError(
                f"save: {x.type} is a global tensor; give global_dst_rank, the rank that writes, "
                "and call save on all ranks"
            )
        home = Placement(x.placement.type, [global_dst_rank])
        x = x.detach().to_global(placement=home, sbp=BROADCAST).to_local()
        if current_config().rank != global_dst_rank:
            return np.empty(0, x.type.dtype.np)
    array = x._array if x.is_cpu else x._array.get()
    if array is None:
        x.numpy()  # says why a traced tensor has no values
    return array  # type: ignore[no-any-return]


def load(
    path: Any,
    global_src_rank: int | None = None,
    map_location: Any = None,
    *,
    support_pytorch_format: bool = True,
) -> Any:
    """Reads what `save` wrote, or a checkpoint of PyTorch or of upstream OneFlow.

    global_src_rank: only this rank reads; all get global tensors on placement("cpu",
    [global_src_rank]).
    map_location: a device, a placement, or a function of the tensor, applied to each tensor.
    Raises CheckpointError for a file that is damaged or asks for anything but values and tensors.
    """
    if global_src_rank is not None:
        obj = _from_rank(path, global_src_rank, support_pytorch_format)
    else:
        obj = _read(path, support_pytorch_format)
    return obj if map_location is None else _mapped(obj, map_location)


def _read(path: Any, support_pytorch_format: bool) -> Any:
    if hasattr(path, "read"):
        return _parse(path.read(), "the buffer", support_pytorch_format)
    found = Path(os.fspath(path))
    if found.is_dir():
        return _read_folder(found)
    if not found.is_file():
        raise FileNotFoundError(f'Cannot load file "{found}": there is no such file')
    return _parse(found.read_bytes(), str(found), support_pytorch_format)


def _read_folder(folder: Path) -> Any:
    if (folder / FOLDER_FILE).is_file():
        return _parse((folder / FOLDER_FILE).read_bytes(), str(folder / FOLDER_FILE), False)
    if (folder / "pickled_data").is_file():
        return load_upstream((folder / "pickled_data").read_bytes(), folder)
    raise CheckpointError(
        f'Cannot load file "{folder}": the folder holds neither {FOLDER_FILE} nor pickled_data'
    )


def _parse(data: bytes, where: str, support_pytorch_format: bool) -> Any:
    METRICS.checkpoint("read", len(data))
    if data[:4] == b"PK\x03\x04":
        if not support_pytorch_format:
            raise CheckpointError(
                f'Cannot load file "{where}": it is a PyTorch file, and support_pytorch_format '
                "is False"
            )
        return load_torch(data)
    if (
        data[:1] == b"\x80"
        and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
        and data[8:9] != b"{"
    ):
        return load_upstream(data)
    return _from_container(data, where)


def _from_container(data: bytes, where: str) -> Any:
    try:
        arrays, metadata = container.read(memoryview(data))
    except CheckpointError as error:
        raise CheckpointError(f'Cannot load file "{where}": {error}') from error
    if "oneflow" not in metadata:  # a plain safetensors file
        return {name: wrap(array) for name, array in arrays.items()}
    if metadata["oneflow"] != VERSION:
        raise CheckpointError(
            f'Cannot load file "{where}": it is of version {metadata["oneflow"]}, '
            f"this program reads {VERSION}"
        )
    tensors: dict[str, Tensor] = {}

    def array(name: str) -> np.ndarray[Any, Any]:
        if name not in arrays:
            raise CheckpointError(f'Cannot load file "{where}": tensor {name!r} is missing')
        return arrays[name]

    def tensor(name: str, requires_grad: bool) -> Tensor:
        if name not in tensors:
            tensors[name] = wrap(array(name), requires_grad=requires_grad)
        return tensors[name]

    try:
        tree = json.loads(metadata["tree"])
        return decode(tree, tensor, array)
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f'Cannot load file "{where}": its structure is malformed') from error


def _from_rank(path: Any, source: int, support_pytorch_format: bool) -> Any:
    """The reading rank sends the structure, then each tensor is made global from it."""
    rank = current_config().rank
    mine: list[Tensor] = []
    form: Any = None
    if rank == source:
        encoder = Encoder(lambda x: mine.append(x) or x._array)  # type: ignore[func-returns-value]
        form = encoder.encode(_read(path, support_pytorch_format))
    form = _broadcast_form(form, source)
    placement = Placement("cpu", [source])
    made: dict[str, Tensor] = {}

    def tensor(name: str, requires_grad: bool) -> Tensor:
        if name not in made:
            local = mine[len(made)] if rank == source else wrap(np.zeros(0, np.float32))
            made[name] = local.detach().to_global(placement=placement, sbp=BROADCAST)
            made[name].requires_grad = requires_grad
        return made[name]

    return decode(form, tensor, lambda name: tensor(name, False))


def _broadcast_form(form: Any, source: int) -> Any:
    """The structure, from one rank to all, as a tensor of bytes."""
    text = json.dumps(form).encode() if form is not None else b""
    sent = wrap(np.frombuffer(text, dtype=np.uint8).copy())
    sent = sent.to_global(placement=Placement("cpu", [source]), sbp=BROADCAST)
    everyone = Placement("cpu", list(range(current_config().world_size)))
    return json.loads(bytes(sent.to_global(placement=everyone, sbp=BROADCAST).to_local().numpy()))


def _mapped(value: Any, where: Any) -> Any:
    """`value` with every tensor moved."""
    if isinstance(value, Tensor):
        return _moved(value, where)
    if isinstance(value, dict):
        for key in value:
            value[key] = _mapped(value[key], where)
        return value
    if isinstance(value, list):
        return [_mapped(v, where) for v in value]
    return tuple(_mapped(v, where) for v in value) if type(value) is tuple else value


def _moved(x: Tensor, where: Any) -> Tensor:
    requires_grad = x.requires_grad
    if isinstance(where, Placement):
        sbp = x.sbp if x.is_global and len(x.sbp) == where.ndim else (BROADCAST,) * where.ndim
        y = x.detach().to_global(placement=where, sbp=sbp)
    elif callable(where):
        y = where(x)
    elif isinstance(where, (str, Device)):
        y = x.detach().to(where)
    else:
        raise TypeError(f"load: map_location is a device, a placement or a function, got {where!r}")
    if requires_grad and y._grad_fn is None:
        y.requires_grad = True
    return y  # type: ignore[no-any-return]
