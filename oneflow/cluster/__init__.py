"""A cluster that takes jobs, from Python.

    cluster = flow.cluster.connect()             # of `oneflow cluster up`, or connect("host:port")
    job = cluster.submit("digits.job", devices=2)
    for point in job.metrics():
        print(point.step, point.values["loss"])
    job.wait()

See docs/CLUSTER.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.surfaces import open_later

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster as Cluster
    from oneflow.cluster.client import connect as connect
    from oneflow.cluster.job import Job as Job
    from oneflow.cluster.job import LogLine as LogLine
    from oneflow.cluster.job import MetricPoint as MetricPoint
    from oneflow.cluster.job import RankWaits as RankWaits

# Whoever reads settings needs no connection, and with it no protobuf.
open_later(
    __name__,
    {
        "Cluster": "client",
        "connect": "client",
        "Job": "job",
        "LogLine": "job",
        "MetricPoint": "job",
        "RankWaits": "job",
    },
)
