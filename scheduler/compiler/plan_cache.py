"""Plans that were made before: of an equal graph in this process, or in another one on this host.

A plan is found by a digest of all it is made of: the traced graph with the lines its nodes were
written in, which errors name, but without its name; the configuration; the ranks; the versions of
this library and of NumPy, and the state of the compiler's own files. In this process a plan is
known for as long as a graph uses it, and a small one a while longer. On disk it is kept if to
compile it takes longer than to find it there: small graphs are compiled anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from oneflow import __version__
from oneflow.core import plan as a_module
from oneflow.core.collector import collector_paused
from oneflow.core.config import current_config
from oneflow.core.disk_cache import DiskCache
from oneflow.core.errors import GraphError, ProtocolError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_proto import whole_digest
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.log import get_logger
from oneflow.core.plan import PLAN_VERSION, Plan
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.passes import FOLDERS
from oneflow.scheduler.compiler.pipeline import compile_graph

_log = get_logger(__name__)
LEAST_NODES = 500
"""Nodes from which plans are kept on disk; with auto-parallel, which searches, all are."""

RECENT_NODES = 5000
"""Nodes in all of the plans that no graph uses and that are known nevertheless, the last ones."""

_COMPILER = (
    *("core", "ops", "boxing", "scheduler/compiler"),
    *(f"scheduler/compiler/{folder}" for folder in FOLDERS),
)
"""Folders of the package whose files decide what a plan is."""


class PlanCache:
    """Finds plans, or lets them be made.

    disk: of entries that begin with their own digest. known: plans of this process, by digest.
    """

    def __init__(self, disk: DiskCache) -> None:
        self._disk = disk
        self._known: WeakValueDictionary[str, Plan] = WeakValueDictionary()
        self._recent: dict[str, Plan] = {}
        self._lock = threading.Lock()  # rank 0 compiles for all in another thread than its own

    def plan(
        self, graph: LogicalGraph, config: JobConfig, cluster: Cluster, make: Callable[[], Plan]
    ) -> Plan:
        """The plan of a traced graph: known here, on disk, or made now."""
        digest = _digest(graph, config, cluster)
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = self._stored(graph, config, digest, make)
        self._remember(digest, found)
        return found.named(graph.name)

    def _remember(self, digest: str, plan: Plan) -> None:
        recent = self._recent
        with self._lock:
            recent.pop(digest, None)
            if len(plan.graph) > RECENT_NODES:
                return
            recent[digest] = plan
            while sum(len(p.graph) for p in recent.values()) > RECENT_NODES:
                del recent[next(iter(recent))]

    def _stored(
        self, graph: LogicalGraph, config: JobConfig, digest: str, make: Callable[[], Plan]
    ) -> Plan:
        if not (self._disk.is_open and (len(graph) >= LEAST_NODES or config.auto_parallel)):
            return make()
        name = f"{digest}-{compiler_state()}"
        found = _read(self._disk.get(name), name)
        if found is None:
            found = make()
            self._disk.put(name, name.encode() + found.to_bytes())
        return found


def _read(entry: bytes | None, name: str) -> Plan | None:
    """The plan in an entry; None for one that is another's, or no plan."""
    if entry is None or not entry.startswith(name.encode()):
        return None
    try:
        with collector_paused():
            return Plan.from_bytes(entry[len(name) :])
    except (GraphError, ProtocolError) as error:
        _log.info("the plan %s on disk is made anew: %s", name, error)
        return None


def _digest(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> str:
    parts = (whole_digest(graph), replace(config, name="").to_bytes(), cluster.to_bytes())
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


@cache
def compiler_state() -> str:
    """Digest of the versions and files on which plans depend besides their graphs."""
    lines = [str(PLAN_VERSION), __version__, np.__version__, platform.python_version()]
    lines += [platform.machine()]
    package = Path(a_module.__file__).parent.parent
    for folder in _COMPILER:
        for item in sorted(os.scandir(package / folder), key=lambda item: item.name):
            if item.name.endswith(".py"):
                found = item.stat()
                lines.append(f"{folder}/{item.name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


@cache
def _plans() -> PlanCache:
    config = current_config()
    disk = DiskCache(
        config.plan_cache, ".plan", config.cache_nbytes, "compiled plans", "ONEFLOW_PLAN_CACHE"
    )
    return PlanCache(disk)


def compile_or_find(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> Plan:
    """`compile_graph`, but for plans that were made before. A found plan leaves `graph` as it is.

    A user that asks to see the passes sees them: then nothing is looked up.
    """
    observer = Observer.from_config()
    if observer.dump_dir is not None or observer.check or observer.progress is not None:
        return compile_graph(graph, config, cluster, observer)
    return _plans().plan(
        graph, config, cluster, lambda: compile_graph(graph, config, cluster, observer)
    )
