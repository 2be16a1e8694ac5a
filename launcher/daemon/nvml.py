"""Facts of an NVIDIA GPU from its driver: memory, memory errors, critical errors (XID).

The daemon itself never touches CUDA, which would take memory of the device; the management library
(NVML), which comes with the driver, needs none. Where it, or its Python module, is missing nothing
is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

from oneflow.core.log import get_logger
from oneflow.core.metrics import Metrics

WAIT_MS = 1000

log = get_logger(__name__)


class Gpu:
    """One GPU, by its number for the driver. nvml: the module pynvml, whose NVMLError is raised if
    the driver does not answer.
    """

    def __init__(self, index: int, nvml: ModuleType) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._device = nvml.nvmlDeviceGetHandleByIndex(index)
        self._ecc_before = self._ecc()
        self._is_watching = False

    def memory(self) -> dict[str, int]:
        """free and limit, in bytes; nothing if the driver does not tell now."""
        try:
            found = self._nvml.nvmlDeviceGetMemoryInfo(self._device)
        except self._nvml.NVMLError:
            return {}
        return {"free": int(found.free), "limit": int(found.total)}

    def new_memory_errors(self) -> int:
        """Uncorrected errors of its memory (ECC) since the last call."""
        now = self._ecc()
        grown, self._ecc_before = max(now - self._ecc_before, 0), now
        return grown

    def watch(self, told: Callable[[int], None]) -> None:
        """Calls `told` from a thread with the number of each critical error (XID)."""
        try:
            events = self._nvml.nvmlEventSetCreate()
            kind = self._nvml.nvmlEventTypeXidCriticalError
            self._nvml.nvmlDeviceRegisterEvents(self._device, kind, events)
        except self._nvml.NVMLError as error:
            log.info("the driver does not tell of critical errors of this GPU: %s", error)
            return
        self._is_watching = True
        threading.Thread(target=self._watch, args=(events, told), name="xid", daemon=True).start()

    def stop(self) -> None:
        """The thread ends within a second or so."""
        self._is_watching = False

    def _watch(self, events: object, told: Callable[[int], None]) -> None:
        while self._is_watching:
            try:
                told(int(self._nvml.nvmlEventSetWait(events, WAIT_MS).eventData))
            except self._nvml.NVMLError_Timeout:
                continue
            except self._nvml.NVMLError as error:
                log.warning("the driver tells of no more critical errors: %s", error)
                return

    def _ecc(self) -> int:
        """0 for a GPU without such memory."""
        kinds = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
        try:
            return int(self._nvml.nvmlDeviceGetTotalEccErrors(self._device, *kinds))
        except self._nvml.NVMLError:
            return 0


def show(metrics: Metrics, index: int) -> Gpu | None:
    """Let `metrics` show the driver's numbers of GPU `index`; None if there are none."""
    try:
        import pynvml
    except ImportError:
        log.info("no memory and no errors of this GPU are shown: pip install nvidia-ml-py")
        return None
    try:
        gpu = Gpu(index, pynvml)
    except pynvml.NVMLError as error:
        log.info("no memory and no errors of this GPU are shown: %s", error)
        return None

    def refresh(shown: Metrics) -> None:
        shown.device_errors["ecc"] += gpu.new_memory_errors()

    def failed(number: int) -> None:
        log.error("the driver reports a critical error of this GPU: XID %d", number)
        metrics.device_errors["xid"] += 1

    metrics.capacity = gpu.memory
    metrics.gauges.append(refresh)
    gpu.watch(failed)
    return gpu
