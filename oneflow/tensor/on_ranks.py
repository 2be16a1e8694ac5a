"""Functions of global tensors that local ones do without, each imported when it is first called.

Local and global tensors share the paths that lead here (`eager`, `convert`, `printing` ...). The
code that moves parts between ranks is a fifth of the modules of the first op, and a program without
global tensors never runs it. Importers write `on_ranks.relayout(...)`, which is one look-up after
the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneflow.distributed.world import world as world
    from oneflow.tensor.eager_global import check_placement as check_placement
    from oneflow.tensor.eager_global import create_global as create_global
    from oneflow.tensor.eager_global import from_whole as from_whole
    from oneflow.tensor.eager_global import gather as gather
    from oneflow.tensor.eager_global import relayout as relayout
    from oneflow.tensor.eager_global import run_global as run_global
    from oneflow.tensor.global_writing import write_slice as write_slice
    from oneflow.tensor.overlapping_global import queue_global as queue_global
    from oneflow.tensor.overlapping_global import queue_relay as queue_relay
    from oneflow.tensor.to_global import check_meta_consistency as check_meta_consistency
    from oneflow.tensor.to_global import global_to_global as global_to_global
    from oneflow.tensor.to_global import local_to_global as local_to_global
    from oneflow.tensor.to_global import to_local as to_local

_HOMES = {
    "oneflow.distributed.world": ("world",),
    "oneflow.tensor.eager_global": (
        *("check_placement", "create_global", "from_whole"),
        *("gather", "relayout", "run_global"),
    ),
    "oneflow.tensor.global_writing": ("write_slice",),
    "oneflow.tensor.overlapping_global": ("queue_global", "queue_relay"),
    "oneflow.tensor.to_global": (
        *("check_meta_consistency", "global_to_global", "local_to_global", "to_local"),
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
