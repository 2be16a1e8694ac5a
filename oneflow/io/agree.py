"""The agreement of ranks before they save together: the same global tensors, in the same order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.core.errors import CheckpointError, DesyncError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.sbp import nd_sbp_str
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.tree import Encoder, Found, global_tensor
from oneflow.tensor.eager_global import check_placement


@dataclass(frozen=True)
class Named:
    """The result of an agreement.

    globals: by name, in an order that is equal on all ranks. everything: this rank's whole tree.
    said: the message of each rank.
    """

    globals: dict[str, Found]
    everything: dict[str, Found]
    said: list[Any]


def agree(pact: AllOrNone, tree: Encoder, said: Json = None) -> Named:
    """Name the tensors to save. Raises CheckpointError if a rank's tree has no form, DesyncError
    if the global tensors differ between ranks."""
    pact.error = pact.error or tree.error
    mine = [f for f in tree.found if f.is_global]
    pact.attempt(lambda: _check_places(mine))
    lines = [_line(f) for f in mine]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    heard = pact.meet([digest, len(mine), _ties(mine), said])
    for rank, (other, count, _, _) in enumerate(heard):
        if other != heard[0][0]:
            raise DesyncError(
                f"{pact.what}: rank {rank} has other global tensors than rank 0 ({count} and "
                f"{heard[0][1]}; here {_short(lines)}); all ranks must save the same names, "
                "shapes and layouts in the same order"
            )
    owners = _owners(mine, [ties for _, _, ties, _ in heard])
    return _named(tree, owners, [s for *_, s in heard])


def _named(tree: Encoder, owners: list[int], said: list[Any]) -> Named:
    """owners: of each global tensor the first one that is the same."""
    place = {id(f): i for i, f in enumerate(f for f in tree.found if f.is_global)}
    local: dict[object, str] = {}

    def name_of(_: int, one: Found) -> str:
        if one.is_global:
            return f"t{owners[place[id(one)]]}"
        return local.setdefault(_memory_of(one.array), f"local{len(local)}")

    everything = tree.name(name_of)
    chosen = {name: found for name, found in everything.items() if found.is_global}
    return Named(chosen, everything, said)


def named_locally(tree: Encoder) -> dict[str, Found]:
    """Name the tensors of a tree without global ones: those that share memory are stored once."""
    known: dict[object, str] = {}
    return tree.name(lambda _, one: known.setdefault(_memory_of(one.array), f"t{len(known)}"))


def _memory_of(array: object) -> object:
    """Equal for arrays that are the same part of the same memory, which a file holds once."""
    if not isinstance(array, np.ndarray) or not array.size:
        return id(array)
    return array.ctypes.data, array.shape, array.strides, array.dtype


def _check_places(found: list[Found]) -> None:
    for one in found:
        try:
            check_placement(global_tensor(one).placement)
        except OneFlowError as error:
            raise CheckpointError(f"{one.where or 'the object'}: {error}") from error


def _line(found: Found) -> str:
    x = global_tensor(found)
    return f"{found.where} {x.meta} {x.placement.notation} {nd_sbp_str(x.sbp)}"


def _short(lines: list[str]) -> str:
    return "; ".join(lines[:3]) + ("; ..." if len(lines) > 3 else "") or "none"


def _ties(found: list[Found]) -> dict[str, int]:
    """Number of a tensor -> number of the first one over the same memory, where they differ."""
    first: dict[int, int] = {}
    firsts = [first.setdefault(id(f.array), i) for i, f in enumerate(found)]
    return {str(i): j for i, j in enumerate(firsts) if i != j}


def _owners(found: list[Found], ties: list[dict[str, int]]) -> list[int]:
    """Return, of each tensor, the first that is the same one, if all ranks that hold it say so."""
    known: dict[Any, int] = {}
    owners = []
    for i, one in enumerate(found):
        x: Any = one.value
        views = tuple(ties[rank].get(str(i), i) for rank in x.placement.rank_ids)
        owners.append(known.setdefault((views, x.meta, x.placement, x.sbp), i))
    return owners
