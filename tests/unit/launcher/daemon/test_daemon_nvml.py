"""Answers of a GPU's driver, from a library that answers as NVML does."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from oneflow.core.metrics import Metrics
from oneflow.launcher.daemon.nvml import SUCCESS, TIMED_OUT, XID_CRITICAL, show

NOT_SUPPORTED, LOST = 3, 15


class Driver:
    """One GPU. xids: what it will tell; then it is silent, or lost."""

    def __init__(self, ecc: int | None = 5, xids: tuple[int, ...] = (), is_lost: bool = False):
        self.ecc, self.xids, self.is_lost = ecc, list(xids), is_lost
        self.handle = 0xABC
        self.asked = threading.Event()

    def nvmlInit_v2(self) -> int:
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        device._obj.value = self.handle
        return SUCCESS if index.value == 0 else 2

    def nvmlDeviceGetMemoryInfo(self, device: Any, found: Any) -> int:
        assert device.value == self.handle
        found._obj.total, found._obj.free, found._obj.used = 80 << 30, 60 << 30, 20 << 30
        return LOST if self.is_lost else SUCCESS

    def nvmlDeviceGetTotalEccErrors(self, device: Any, kind: Any, since: Any, count: Any) -> int:
        assert (kind.value, since.value) == (1, 0)  # uncorrected, since the driver was loaded
        if self.ecc is None:
            return NOT_SUPPORTED
        count._obj.value = self.ecc
        return SUCCESS

    def nvmlEventSetCreate(self, events: Any) -> int:
        events._obj.value = 7
        return SUCCESS

    def nvmlDeviceRegisterEvents(self, device: Any, kinds: Any, events: Any) -> int:
        return SUCCESS if kinds.value == XID_CRITICAL and events.value == 7 else NOT_SUPPORTED

    def nvmlEventSetWait_v2(self, events: Any, event: Any, timeout_ms: Any) -> int:
        if self.xids:
            event._obj.data = self.xids.pop(0)
            return SUCCESS
        self.asked.set()
        return LOST if self.is_lost else TIMED_OUT


def shown(driver: Driver, index: int = 0) -> Metrics:
    metrics = Metrics()
    gpu = show(metrics, index, lambda name: driver)
    if gpu is not None:
        assert driver.asked.wait(10)
        gpu.stop()
    return metrics


def test_memory_and_errors_of_a_gpu() -> None:
    driver = Driver(xids=(79, 48))
    metrics = shown(driver)
    assert metrics.capacity() == {"free": 60 << 30, "limit": 80 << 30}
    assert metrics.device_errors == {"ecc": 0, "xid": 2, "launch": 0}
    for ecc, counted in ((5, 0), (8, 3), (8, 3), (0, 3), (1, 4)):  # a reset makes it 0
        driver.ecc = ecc
        for refresh in metrics.gauges:
            refresh(metrics)
        assert metrics.device_errors["ecc"] == counted


def test_a_gpu_that_cannot_tell_is_no_error() -> None:
    metrics = shown(Driver(ecc=None, is_lost=True))
    assert metrics.capacity() == {}
    for refresh in metrics.gauges:
        refresh(metrics)
    assert not any(metrics.device_errors.values())


def test_without_the_library_or_the_gpu_nothing_is_told() -> None:
    assert shown(Driver(), index=3).gauges == []
    assert show(Metrics(), 0, lambda name: ctypes.CDLL("libno-such-thing.so.1")) is None
