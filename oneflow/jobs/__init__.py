"""Jobs as data: one file holds a graph, its variables and its input pipeline; a cluster runs it.

    graph.export("digits.job", data=flow.jobs.data.npz("d.npz", x="images", y="labels")
                 .shuffle(7).batch(64).repeat(), steps=500)

No code is in the file, and none is run from it. See docs/JOBS.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneflow.jobs import data as data
    from oneflow.jobs.errors import JobFileError as JobFileError
    from oneflow.jobs.export import save as save
    from oneflow.jobs.jobfile import JobFile as JobFile
    from oneflow.jobs.jobfile import load as load
    from oneflow.jobs.jobfile import verify as verify

# Imported when first asked for: who submits a file needs no tensors.
_HOMES = {
    "JobFileError": "errors",
    "save": "export",
    "JobFile": "jobfile",
    "load": "jobfile",
    "verify": "jobfile",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("oneflow.jobs.data")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), "data", *_HOMES])
