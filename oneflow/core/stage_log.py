"""The stages of compiling a graph: how long each took, and the memory of the process after it.

The compiler of a graph calls `note`; `recording` registers a listener for the graphs of a name for
the time being.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_STATM = "/proc/self/statm"


@dataclass(frozen=True)
class CompileStage:
    """A stage. rss_nbytes, vm_nbytes: physical and virtual memory of the process after it."""

    name: str
    seconds: float
    rss_nbytes: int
    vm_nbytes: int

    def line(self, graph: str) -> str:
        """Return it in the form of upstream's log."""
        fields = {
            "loc": f"[GraphCompile]{graph} {self.name}",
            "mem_rss": f"{self.rss_nbytes / 2**20:.1f} MB",
            "mem_vm": f"{self.vm_nbytes / 2**20:.1f} MB",
            "time_cost": f"{self.seconds:.6f} seconds",
        }
        return "[count log]" + json.dumps(fields, separators=(",", ":"))


_recorders: dict[str, Callable[[CompileStage], None]] = {}


@contextmanager
def recording(graph: str, recorder: Callable[[CompileStage], None]) -> Iterator[None]:
    """Inside, `recorder` gets the stages of the graph of that name, noted by any thread."""
    before = _recorders.get(graph)
    _recorders[graph] = recorder
    try:
        yield
    finally:
        if before is None:
            del _recorders[graph]
        else:
            _recorders[graph] = before


def note(graph: str, name: str, seconds: float) -> None:
    """Tell that a stage of a graph has ended."""
    recorder = _recorders.get(graph)
    if recorder is not None:
        recorder(measured(name, seconds))


def measured(name: str, seconds: float) -> CompileStage:
    """Return a stage that has just ended, with the memory of now."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        with open(_STATM) as file:
            vm, rss = (int(pages) * page for pages in file.read().split()[:2])
    except OSError:  # not on Linux
        vm = rss = 0
    return CompileStage(name, seconds, rss, vm)
