"""`torch.distributed.checkpoint`: state dicts in a folder that all ranks write and read together
(`flow.save`), each its own parts, from any number of ranks and any layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from oneflow import comm
from oneflow.compat.torch.dtensor import full_tensor
from oneflow.core.config import current_config
from oneflow.core.errors import CheckpointError
from oneflow.io.checkpoint import load as load_file
from oneflow.io.checkpoint import save as save_file
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = [
    "CheckpointException",
    "DefaultLoadPlanner",
    "DefaultSavePlanner",
    "FileSystemReader",
    "FileSystemWriter",
    "Stateful",
    "async_save",
    "load",
    "load_state_dict",
    "save",
    "save_state_dict",
]

CheckpointException = CheckpointError
Place: TypeAlias = "str | Path | None"


@runtime_checkable
class Stateful(Protocol):
    """An object in a state dict that stands for its own state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take a state."""


class _Storage:
    """A folder. The other arguments change nothing."""

    def __init__(self, path: str | Path, *_: object, **__: object) -> None:
        self.path = Path(path)


class FileSystemWriter(_Storage):
    """The folder that is written."""


class FileSystemReader(_Storage):
    """The folder that is read."""


class DefaultSavePlanner:
    """A plan of a save: each rank writes its own parts."""

    def __init__(self, *_: object, **__: object) -> None:
        return


class DefaultLoadPlanner(DefaultSavePlanner):
    """A plan of a load: each rank reads its own parts. allow_partial_load: keys that the
    checkpoint lacks stay as they are.
    """

    def __init__(self, *_: object, allow_partial_load: bool = False, **__: object) -> None:
        self.allow_partial_load = allow_partial_load


def _folder(checkpoint_id: Place, storage: _Storage | None) -> Path:
    if checkpoint_id is not None:
        return Path(checkpoint_id)
    if storage is None:
        raise CheckpointError("distributed.checkpoint: give checkpoint_id, the path of a folder")
    return storage.path


def save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Place = None,
    storage_writer: _Storage | None = None,
    planner: object = None,
    process_group: object = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> None:
    """Write a state dict to a folder; all ranks call it. Of local tensors and values rank 0's are
    written. Raises CheckpointError for objects that have no form in a checkpoint.

    Example::

        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.distributed.checkpoint.save(state, checkpoint_id="ckpt/step_100")
    """
    tree = _plain(state_dict)
    folder = _folder(checkpoint_id, storage_writer)
    if _has_global(tree):
        save_file(tree, folder)
    elif current_config().rank == 0:
        save_file(tree, folder, save_as_external_data=True)
    _wait_for_all()


def async_save(
    state_dict: Mapping[str, Any],
    *,
    checkpoint_id: Place = None,
    storage_writer: _Storage | None = None,
    **_: object,
) -> Future[None]:
    """Write a state dict as `save` does, and return a future that is done: the ranks write
    together, in the order of their other calls.
    """
    save(state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer)
    done: Future[None] = Future()
    done.set_result(None)
    return done


def load(
    state_dict: MutableMapping[str, Any],
    *,
    checkpoint_id: Place = None,
    storage_reader: _Storage | None = None,
    planner: DefaultSavePlanner | None = None,
    process_group: object = None,
    no_dist: bool = False,
) -> None:
    """Fill a state dict from a folder; all ranks call it. Tensors keep their layout and memory.

    Raises CheckpointError for a key that the checkpoint lacks, and for another shape.
    """
    found = load_file(_folder(checkpoint_id, storage_reader))
    lacks = isinstance(planner, DefaultLoadPlanner) and planner.allow_partial_load
    with no_grad():
        _fill(state_dict, found, "", lacks)


def save_state_dict(state_dict: Mapping[str, Any], storage_writer: _Storage, **_: object) -> None:
    """Write a state dict: the name of old for `save`."""
    save(state_dict, storage_writer=storage_writer)


def load_state_dict(
    state_dict: MutableMapping[str, Any], storage_reader: _Storage, **_: object
) -> None:
    """Fill a state dict: the name of old for `load`."""
    load(state_dict, storage_reader=storage_reader)


def _plain(value: object) -> Any:
    """A tree that `flow.save` takes: states of objects, and no tensor on ranks that differ."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(one) for one in value)
    if isinstance(value, Tensor):
        everyone = current_config().world_size
        is_partial = value.is_global and value.placement.size < everyone
        return full_tensor(value).detach() if is_partial else value.detach()
    return _plain(value.state_dict()) if isinstance(value, Stateful) else value


def _has_global(tree: object) -> bool:
    if isinstance(tree, Mapping):
        return any(map(_has_global, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(_has_global, tree))
    return isinstance(tree, Tensor) and tree.is_global


def _wait_for_all() -> None:
    if current_config().world_size > 1:
        comm.barrier()


def _fill(wanted: Any, found: Any, path: str, lacks: bool) -> None:
    pairs = wanted.items() if isinstance(wanted, Mapping) else enumerate(wanted)
    for key, value in list(pairs):
        where = f"{path}.{key}" if path else str(key)
        try:
            there = found[key]
        except (KeyError, IndexError):
            if lacks:
                continue
            raise CheckpointError(f"the checkpoint has no {where}") from None
        if isinstance(value, Tensor):
            _copy(value, there, where)
        elif isinstance(value, (Mapping, list)):
            _fill(value, there, where, lacks)
        elif isinstance(value, Stateful):
            state = value.state_dict()
            _fill(state, there, where, lacks)
            value.load_state_dict(state)
        else:
            wanted[key] = there


def _copy(x: Tensor, there: object, where: str) -> None:
    if not isinstance(there, Tensor) or there.shape != x.shape:
        shape = list(there.shape) if isinstance(there, Tensor) else type(there).__name__
        raise CheckpointError(f"{where} has shape {list(x.shape)}, in the checkpoint {shape}")
    if there.is_global and not x.is_global:
        there = full_tensor(there)
    elif x.is_global:
        there = there.to_global(x.placement, x.sbp)
    x.copy_(there)
