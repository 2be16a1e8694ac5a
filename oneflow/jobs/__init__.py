"""Jobs as data: one file holds a graph, its variables and its input pipeline; a cluster runs it.

    graph.export("digits.job", data=flow.jobs.data.npz("d.npz", x="images", y="labels")
                 .shuffle(7).batch(64).repeat(), steps=500)

No code is in the file, and none is run from it. See docs/JOBS.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.surfaces import open_later

if TYPE_CHECKING:
    from oneflow.jobs import data as data
    from oneflow.jobs.description import JobFileError as JobFileError
    from oneflow.jobs.export import save as save
    from oneflow.jobs.jobfile import JobFile as JobFile
    from oneflow.jobs.jobfile import load as load
    from oneflow.jobs.jobfile import verify as verify

# Whoever submits a file needs no tensors.
open_later(
    __name__,
    {
        "data": "data",
        "JobFileError": "description",
        "save": "export",
        "JobFile": "jobfile",
        "load": "jobfile",
        "verify": "jobfile",
    },
)
