"""Traces that were made before: of an equal graph in this process, or in another one on this host.

A trace is found by its key (build_key.py), which is read off the program without running it. What
is kept of it is what a graph needs besides its plan: the names of its variables, the form of its
outputs, the random numbers that it draws; the plan itself is kept by the compiler's cache. On disk
both lie in the same folder, under the same rules.

Nothing is looked up for graphs whose making is watched (`debug(2)`, dumps of passes), that span
several ranks, which have to agree on a trace, or that have more to be remembered of: pipeline
stages, ZeRO, recomputation, scalers, searches for layouts.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from oneflow.core.config import current_config
from oneflow.core.device import Device
from oneflow.core.disk_cache import DiskCache
from oneflow.core.dispatch import is_default_mode
from oneflow.core.log import get_logger
from oneflow.core.plan import Plan
from oneflow.functional.random_state import default_generator
from oneflow.graph.arguments import meta_of
from oneflow.graph.build_key import PLAIN, BuildKey, Unkeyed, package, surroundings
from oneflow.graph.names import names_of
from oneflow.graph.tracing import place_of_build
from oneflow.graph.tree import Tree, map_tensors
from oneflow.optim.lr_scheduler import LRScheduler
from oneflow.tensor.tensor import Tensor, wrap_traced

if TYPE_CHECKING:
    from oneflow.core.graph import Value
    from oneflow.core.job_config import JobConfig
    from oneflow.functional.random_state import Generator
    from oneflow.graph.graph import Graph
    from oneflow.graph.trace import Trace

_log = get_logger(__name__)
LEAST_NODES = 50
"""Nodes from which a trace is kept: smaller graphs are traced as soon as looked up."""

MOST = 128
"""Traces that are known in this process at a time."""

_OWN = frozenset(
    ("_name", "_modules", "_stages", "_optimizers", "_scaler", "_recomputed", "_split",
     "_gathered", "_debugged", "config", "_compiled", "_built", "_plans", "_profile",
     "_halves", "_lets_share", "_initial_step", "_stack", "_debug_v_level", "_debug_ranks",
     "_choice", "_means", "_read_ahead")
)  # fmt: skip
"""Attributes of every graph."""

_UNTOLD = (_OWN - {"_modules", "config"}) | {"name", "is_compiled"}
"""Those that say nothing about the trace, unless code reads them."""


@dataclass(frozen=True)
class Record:
    """The facts about a trace that its graph needs besides the plan.

    plan: the digest by which it is known. variables: in the plan's order, the name of each in the
    graph. outputs: what build returned, described. draws: calls of the default generator by each
    micro-batch, and once after them; None: it is not called. num_nodes: of the traced graph.
    swaps: see PackageState.
    """

    plan: str
    variables: tuple[str, ...]
    outputs: tuple[str, Any]
    draws: tuple[int, int] | None
    num_nodes: int
    swaps: dict[str, str]


class Found(NamedTuple):
    """A trace that was made before, for another graph."""

    plan: Plan
    variables: dict[str, Tensor]
    outputs: Any
    draws: tuple[tuple[Generator, int, int], ...]
    num_nodes: int


class Key(NamedTuple):
    """The key of a graph's trace.

    config: the ways to compile the graph. names: of the tensors that it knows, by their id. own:
    those tensors, by their names.
    """

    digest: str
    config: JobConfig
    names: dict[int, str]
    own: dict[str, Tensor]


class TraceCache:
    """Records of this process and of a folder."""

    def __init__(self, disk: DiskCache) -> None:
        self._disk = disk
        self._known: OrderedDict[str, Record] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> Record | None:
        """A record that was kept under this key."""
        with self._lock:
            found = self._known.get(digest)
            if found is not None:
                self._known.move_to_end(digest)
                return found
        stored = self._stored(digest)
        if stored is not None:
            self._remember(digest, stored)
        return stored

    def put(self, digest: str, record: Record, *, on_disk: bool) -> None:
        """Keep a record."""
        self._remember(digest, record)
        if on_disk and self._disk.is_open:
            name = _entry(digest)
            self._disk.put(name, json.dumps([name, asdict(record)]).encode())

    def _remember(self, digest: str, record: Record) -> None:
        with self._lock:
            self._known[digest] = record
            while len(self._known) > MOST:
                self._known.popitem(last=False)

    def _stored(self, digest: str) -> Record | None:
        if not self._disk.is_open:
            return None
        name = _entry(digest)
        entry = self._disk.get(name)
        if entry is None:
            return None
        try:
            written, fields = json.loads(entry)
            draws = fields.pop("draws")
            variables = tuple(fields.pop("variables"))
            record = Record(**fields, variables=variables, draws=draws and tuple(draws))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            _log.info("the trace %s on disk is made anew: %s", name, error)
            return None
        if written != name or not package.has_swaps(record.swaps):
            return None
        return record


def _compiler() -> Any:
    """The cache of plans, a part of the compiler, which is loaded with the first graph."""
    return importlib.import_module("oneflow.scheduler.compiler.plan_cache")


def _entry(digest: str) -> str:
    return f"{digest}-{_compiler().files_state()}"


@cache
def _traces() -> TraceCache:
    config = current_config()
    return TraceCache(
        DiskCache(config.plan_cache, ".trace", config.cache_nbytes, "traces", "ONEFLOW_PLAN_CACHE")
    )


# ---- keys ----------------------------------------------------------------------------------------


def key_of_trace(graph: Graph, given: Tree, config: JobConfig) -> Key | None:
    """The key of the trace of a graph for (args, kwargs); None if it has to be traced.

    Makes the states of the optimizers, as tracing does.
    """
    if not _can_be_found(graph):
        return None
    names = names_of(graph)
    try:
        digest, tensors = _digest(graph, given, config, names)
    except (Unkeyed, RecursionError) as error:
        _log.info("graph %s is traced: %s", graph.name, error)
        return None
    return Key(digest, config, names, {names[id(x)]: x for x in tensors if id(x) in names})


def _can_be_found(graph: Graph) -> bool:
    if _compiler().is_watched() or graph._stack is not None or not is_default_mode():
        return False
    config = graph.config
    if config.auto_parallel or config.zero is not None or config.memory_limit is not None:
        return False
    rest: tuple[object, ...] = graph._stages, graph._recomputed, graph._scaler, graph._debugged
    rest += graph._split, graph._halves
    return not any(rest)


def _digest(
    graph: Graph, given: Tree, config: JobConfig, names: dict[int, str]
) -> tuple[str, list[Tensor]]:
    """The digest of a trace's key, and the tensors that it tells of."""
    key = BuildKey(names)
    settings = dict(vars(graph.config), unfused=sorted(graph.config.unfused))
    key.add(replace(config, name="").to_bytes(), settings, surroundings())
    key.add(place_of_build(graph), map_tensors(given, _described_input))
    build = graph.build
    key.add_object(graph, {k: v for k, v in vars(graph).items() if k not in _OWN})
    key.add(graph._modules, getattr(build, "__func__", build))
    for optimizer in graph._optimizers:
        schedule: LRScheduler | None = optimizer.lr_sch
        key.add(optimizer.optim, schedule is not None and schedule.cycle_momentum)
    digest = key.digest()
    if told := sorted(_UNTOLD & key.named):
        raise Unkeyed(f"code reads {', '.join(told)}, which graphs have")
    return digest, key.tensors


def _described_input(x: Tensor) -> tuple[object, ...]:
    type_, placement, sbp = meta_of(x)
    where = None if placement is None else repr(placement)
    return "input", tuple(type_.shape), type_.dtype.name, str(x._device), where, str(sbp)


# ---- from records and to them --------------------------------------------------------------------


def find_trace(graph: Graph, key: Key | None) -> Found | None:
    """A trace made before that this key tells, for this graph; None if it has to be traced."""
    record = None if key is None else _traces().get(key.digest)
    if record is None or key is None or _is_replaced(graph):
        return None
    plan = _compiler().find_plan(record.plan, graph.name)
    if plan is None:
        return None
    values = {int(n.attrs["index"]): n.inputs[0] for n in plan.graph.of_kind("output")}
    draws = () if record.draws is None else ((default_generator, *record.draws),)
    outputs = _rebuilt(record.outputs, values, count())
    variables = {name: key.own[name] for name in record.variables}
    return Found(plan, variables, outputs, draws, record.num_nodes)


def _is_replaced(graph: Graph) -> bool:
    """Whether the program has replaced parts of this package."""
    replaced = package.replaced()
    if replaced:
        _log.info("graph %s is traced: %s was replaced", graph.name, replaced)
    return bool(replaced)


class Pending(NamedTuple):
    """A record of a trace whose plan is not made yet."""

    digest: str
    record: Record


def pending_record(
    graph: Graph, given: Tree, key: Key | None, trace: Trace, outputs: Tree
) -> Pending | None:
    """The record of a trace that was made under a key; None if there is more to it than the key
    tells, or if `build` has changed what it depends on.
    """
    if key is None or len(trace.graph) < LEAST_NODES:
        return None
    more = trace.reads_values, trace.sources, trace.forgotten, trace.copies
    if any(more) or not _can_be_found(graph) or len(trace.graph.rank_ids) != 1:
        return None
    if not trace.variables.keys() <= key.own.keys():
        return None
    draws = trace.draws.of_default
    if draws is None or _is_replaced(graph):
        return None
    try:
        described = _described(outputs)
        if _digest(graph, given, key.config, key.names)[0] != key.digest:
            return None
    except (Unkeyed, RecursionError):
        return None
    variables = tuple(trace.variables)
    record = Record("", variables, described, draws, len(trace.graph), package.swaps())
    return Pending(key.digest, record)


def keep_trace(pending: Pending, plan: Plan) -> None:
    """Keep a record whose plan was made."""
    if plan.origin.digest:
        record = replace(pending.record, plan=plan.origin.digest)
        is_stored = record.num_nodes >= _compiler().LEAST_NODES
        _traces().put(pending.digest, record, on_disk=is_stored)


def _described(tree: Tree) -> tuple[str, Any]:
    """The kind and the parts of what build returned, a tensor as its device. Raises Unkeyed."""
    if isinstance(tree, Tensor):
        return "tensor", None if tree._placement is not None else str(tree._device)
    kind = type(tree)
    if isinstance(tree, list | tuple) and kind in (list, tuple):
        return kind.__name__, [_described(item) for item in tree]
    if isinstance(tree, dict) and kind is dict and all(type(key) in (str, int) for key in tree):
        return "dict", [(key, _described(item)) for key, item in tree.items()]
    if kind in PLAIN - {complex, bytes, type(Ellipsis)}:
        return "value", tree
    raise Unkeyed(f"build() returns a {kind.__name__}")


def _rebuilt(described: tuple[str, Any], values: dict[int, Value], numbers: count[int]) -> Any:
    kind, what = described
    if kind == "tensor":
        value = values[next(numbers)]
        if what is not None:
            return wrap_traced(value, value.type, device=Device(what))
        return wrap_traced(value, value.type, placement=value.placement, sbp=value.sbp)
    if kind == "value":
        return what
    if kind == "dict":
        return {key: _rebuilt(item, values, numbers) for key, item in what}
    items = [_rebuilt(item, values, numbers) for item in what]
    return tuple(items) if kind == "tuple" else items
