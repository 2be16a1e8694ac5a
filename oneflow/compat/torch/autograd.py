"""Names of `torch.autograd` beyond those of `flow.autograd`."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from oneflow.core.device import Device
from oneflow.core.no_effect import without_effect
from oneflow.tensor.grad_mode import state
from oneflow.tensor.tensor import Tensor

Variable = Tensor

REASON = "an error of a backward pass names the op; check values with flow.isfinite"


class set_detect_anomaly:
    """Take note, at once and for a block: an error of a backward pass names its op in any case."""

    is_on = False

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        if mode:
            without_effect("autograd.set_detect_anomaly", REASON)
        self._before = set_detect_anomaly.is_on
        set_detect_anomaly.is_on = bool(mode)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_detect_anomaly.is_on = self._before


class detect_anomaly(set_detect_anomaly):
    """A block in which note is taken: see `set_detect_anomaly`."""

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(True, check_nan)


def is_anomaly_enabled() -> bool:
    """Return whether `set_detect_anomaly(True)` was called last."""
    return set_detect_anomaly.is_on


is_anomaly_check_nan_enabled = is_anomaly_enabled


def _profiler_enabled() -> bool:
    """Return False: PyTorch's profiler does not run."""
    return False


class save_on_cpu:
    """A block in which tensors that are saved for a backward pass wait in host memory."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        self._pins = pin_memory

    def __enter__(self) -> None:
        state.saved_hooks = (*state.saved_hooks, (self._pack, self._unpack))

    def __exit__(self, *_: object) -> None:
        state.saved_hooks = state.saved_hooks[:-1]

    def _pack(self, x: Tensor) -> Any:
        host = x.detach().cpu()
        return x.device, host.pin_memory() if self._pins else host

    def _unpack(self, packed: tuple[Device, Tensor]) -> Tensor:
        device, host = packed
        return host.to(device, non_blocking=self._pins)
