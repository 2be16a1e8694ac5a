"""Facts of an NVIDIA GPU from its driver: memory, memory errors, critical errors (XID).

The daemon itself never touches CUDA, which would take memory of the device; the management library
(NVML), which comes with the driver, needs none. Where it is missing nothing is told.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from oneflow.core.log import get_logger
from oneflow.core.metrics import Metrics

LIBRARY = "libnvidia-ml.so.1"
UNCORRECTED, SINCE_DRIVER_LOAD = 1, 0
XID_CRITICAL = 0x8
WAIT_MS = 1000
SUCCESS, TIMED_OUT = 0, 10

log = get_logger(__name__)


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Gpu:
    """One GPU, by its number for the driver. Raises OSError if the driver does not answer."""

    def __init__(self, index: int, load: Callable[[str], Any]) -> None:
        self._library = load(LIBRARY)
        self._device = ctypes.c_void_p()
        self._must("nvmlInit_v2")
        self._must(
            "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._device)
        )
        self._ecc_before = self._ecc()
        self._is_watching = False

    def memory(self) -> dict[str, int]:
        """free and limit, in bytes; nothing if the driver does not tell now."""
        found = _Memory()
        if self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(found)) != SUCCESS:
            return {}
        return {"free": int(found.free), "limit": int(found.total)}

    def new_memory_errors(self) -> int:
        """Uncorrected errors of its memory (ECC) since the last call."""
        now = self._ecc()
        grown, self._ecc_before = max(now - self._ecc_before, 0), now
        return grown

    def watch(self, told: Callable[[int], None]) -> None:
        """Calls `told` from a thread with the number of each critical error (XID)."""
        events = ctypes.c_void_p()
        kinds = ctypes.c_ulonglong(XID_CRITICAL)
        if (
            self._call("nvmlEventSetCreate", ctypes.byref(events)) != SUCCESS
            or self._call("nvmlDeviceRegisterEvents", self._device, kinds, events) != SUCCESS
        ):
            log.info("the driver does not tell of critical errors of this GPU")
            return
        self._is_watching = True
        watching = partial(self._watch, events, told)
        threading.Thread(target=watching, name="xid", daemon=True).start()

    def stop(self) -> None:
        """The thread ends within a second or so."""
        self._is_watching = False

    def _watch(self, events: ctypes.c_void_p, told: Callable[[int], None]) -> None:
        event = _Event()
        wait = (events, ctypes.byref(event), ctypes.c_uint(WAIT_MS))
        while self._is_watching:
            status = self._call("nvmlEventSetWait_v2", *wait)
            if status == SUCCESS:
                told(int(event.data))
            elif status != TIMED_OUT:
                log.warning("the driver tells of no more critical errors (status %d)", status)
                return

    def _ecc(self) -> int:
        """0 for a GPU without such memory."""
        count = ctypes.c_ulonglong()
        kinds = ctypes.c_int(UNCORRECTED), ctypes.c_int(SINCE_DRIVER_LOAD)
        status = self._call(
            "nvmlDeviceGetTotalEccErrors", self._device, *kinds, ctypes.byref(count)
        )
        return int(count.value) if status == SUCCESS else 0

    def _call(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, name)(*arguments))

    def _must(self, name: str, *arguments: object) -> None:
        status = self._call(name, *arguments)
        if status != SUCCESS:
            raise OSError(f"{name} of {LIBRARY} gives {status}")


def show(metrics: Metrics, index: int, load: Callable[[str], Any] = ctypes.CDLL) -> Gpu | None:
    """Lets `metrics` show what the driver tells of GPU `index`; None if it tells nothing."""
    try:
        gpu = Gpu(index, load)
    except (OSError, AttributeError) as error:
        log.info("no memory and no errors of this GPU are shown: %s", error)
        return None

    def refresh(shown: Metrics) -> None:
        shown.device_errors["ecc"] += gpu.new_memory_errors()

    def failed(number: int) -> None:
        log.error("the driver reports a critical error of this GPU: XID %d", number)
        metrics.device_failed("xid")

    metrics.capacity = gpu.memory
    metrics.gauges.append(refresh)
    gpu.watch(failed)
    return gpu
