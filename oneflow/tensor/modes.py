"""Global mode: inside it source ops make global tensors, so that unchanged single-device code can
be traced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from oneflow.core.device import Device, DeviceLike
from oneflow.core.errors import PlacementError
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike, as_nd_sbp
from oneflow.tensor.layout import as_placement


@dataclass(frozen=True)
class GlobalMode:
    """The state of `global_mode`.

    is_enabled: inside `global_mode(True, ...)`. Reading placement or sbp of a disabled mode is an
    error.
    """

    is_enabled: bool = False
    _placement: Placement | None = None
    _sbp: NdSbp | None = None

    @property
    def placement(self) -> Placement:
        if self._placement is None:
            raise PlacementError("current_global_mode().placement: global mode is disabled here")
        return self._placement

    @property
    def sbp(self) -> NdSbp:
        if self._sbp is None:
            raise PlacementError("current_global_mode().sbp: global mode is disabled here")
        return self._sbp


class _State(threading.local):
    mode = GlobalMode()


_state = _State()


def current_global_mode() -> GlobalMode:
    return _state.mode


@contextmanager
def global_mode(
    enabled: bool, placement: Placement | None = None, sbp: SbpLike | None = None
) -> Iterator[GlobalMode]:
    """Inside the with-block creation functions make global tensors of this placement and sbp (if
    enabled).
    """
    placement = as_placement(placement, "global_mode")
    if enabled and (placement is None or sbp is None):
        raise PlacementError("global_mode(True) needs both placement and sbp")
    if enabled and placement is not None and sbp is not None:
        mode = GlobalMode(True, placement, as_nd_sbp(sbp, placement.ndim))
    else:
        mode = GlobalMode()
    previous, _state.mode = _state.mode, mode
    try:
        yield mode
    finally:
        _state.mode = previous


def where_to_create(
    who: str,
    device: DeviceLike | None = None,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
) -> tuple[Placement | None, NdSbp | None]:
    """Placement and sbp of a new tensor; None and None for a local one.

    Inside global mode a device says only of which type the mode's placement is to be. Raises
    PlacementError, SbpError or TypeError for arguments that do not go together.
    """
    if (placement is None) != (sbp is None):
        raise PlacementError(f"{who}: placement and sbp go together; give both or none")
    if placement is not None and sbp is not None:
        if device is not None:
            raise PlacementError(f"{who}: give either device or placement with sbp, not both")
        given = as_placement(placement, who)
        assert given is not None
        return given, as_nd_sbp(sbp, given.ndim)
    mode = current_global_mode()
    if not mode.is_enabled:
        return None, None
    if device is None or Device(device).type == mode.placement.type:
        return mode.placement, mode.sbp
    return Placement(Device(device).type, mode.placement.ranks), mode.sbp
