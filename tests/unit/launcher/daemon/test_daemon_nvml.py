"""Answers of a GPU's driver, from a module that answers as pynvml does."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.metrics import Metrics
from oneflow.launcher.daemon.nvml import show
from tests.support.waiting import WAIT_S


class NVMLError(Exception):
    """Any other answer than success."""


class NVMLError_Timeout(NVMLError):
    """Nothing happened while it was waited."""


class Driver:
    """One GPU, number 0. xids: the numbers that it will tell; then it is silent, or lost."""

    NVMLError, NVMLError_Timeout = NVMLError, NVMLError_Timeout
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, ecc: int | None = 5, xids: tuple[int, ...] = (), is_lost: bool = False):
        self.ecc, self.xids, self.is_lost = ecc, list(xids), is_lost
        self.asked = threading.Event()

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index:
            raise NVMLError("Invalid Argument")
        return "gpu"

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:
        if self.is_lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(total=80 << 30, free=60 << 30, used=20 << 30)

    def nvmlDeviceGetTotalEccErrors(self, device: str, kind: int, since: int) -> int:
        assert (device, kind, since) == ("gpu", 1, 0)  # uncorrected, since the driver was loaded
        if self.ecc is None:
            raise NVMLError("Not Supported")
        return self.ecc

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, device: str, kinds: int, events: str) -> None:
        assert (device, kinds, events) == ("gpu", 8, "events")

    def nvmlEventSetWait(self, events: str, timeout_ms: int) -> Any:
        if self.xids:
            return SimpleNamespace(eventData=self.xids.pop(0))
        self.asked.set()
        raise NVMLError("GPU is lost") if self.is_lost else NVMLError_Timeout("Timeout")


def shown(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, index: int = 0) -> Metrics:
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # None: it cannot be imported
    metrics = Metrics()
    gpu = show(metrics, index)
    if gpu is not None and driver is not None:
        assert driver.asked.wait(WAIT_S)
        gpu.stop()
    return metrics


def test_memory_and_errors_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(xids=(79, 48))
    metrics = shown(monkeypatch, driver)
    assert metrics.capacity() == {"free": 60 << 30, "limit": 80 << 30}
    assert metrics.device_errors == {"ecc": 0, "xid": 2, "launch": 0}
    for ecc, counted in ((5, 0), (8, 3), (8, 3), (0, 3), (1, 4)):  # a reset makes it 0
        driver.ecc = ecc
        for refresh in metrics.gauges:
            refresh(metrics)
        assert metrics.device_errors["ecc"] == counted


def test_a_gpu_that_cannot_tell_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = shown(monkeypatch, Driver(ecc=None, is_lost=True))
    assert metrics.capacity() == {}
    for refresh in metrics.gauges:
        refresh(metrics)
    assert not any(metrics.device_errors.values())


def test_without_the_library_or_the_gpu_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Driver(), index=3).gauges == []
    assert shown(monkeypatch, None).gauges == []
