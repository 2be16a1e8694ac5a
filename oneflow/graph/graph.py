"""nn.Graph: a subclass's `build` is traced once, compiled, and then run as a plan of actors.

class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.m = model
        self.add_optimizer(optimizer, lr_sch=schedule)
    def build(self, x, y):
        loss = loss_fn(self.m(x), y)
        loss.backward()
        return loss
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from oneflow.boxing import settings as boxing_settings
from oneflow.core.dtype import int64
from oneflow.core.errors import GraphError, OneFlowError, ShapeError
from oneflow.core.graph import LogicalGraph, Value
from oneflow.core.job_config import JobConfig
from oneflow.core.location import locate
from oneflow.core.metrics import METRICS
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.distributed.world import world
from oneflow.functional.random_state import get_rng_state, set_rng_state
from oneflow.graph.arguments import Arguments, check_inputs
from oneflow.graph.binding import compile_and_bind
from oneflow.graph.config import GraphConfig
from oneflow.graph.describe import describe, input_names
from oneflow.graph.draws import GraphRandomness
from oneflow.graph.optimizer import GraphOptimizer
from oneflow.graph.proxy import Proxy, Stage
from oneflow.graph.trace import Trace
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.jobs.export import save
from oneflow.nn.module import Module
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.grad_mode import no_grad, set_grad_enabled
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

STEP_KEY = "System-Train-TrainStep"
RANDOM_KEY = "System-Train-RandomState"


class BuildMissingError(GraphError, NotImplementedError):
    """A graph class without `build`."""


class NotInitializedError(GraphError, AttributeError):
    """A graph whose class has an `__init__` that does not call the one of nn.Graph."""


class Graph:
    """Base of user graphs; `build` must be overridden.

    debug_v_level: 0 prints the stages of the first call, 1 the modules, 2 a line for each op, 3 the
    compiled plan as well.
    debug_ranks: ranks that print; None: rank 0; -1: all.  The other keywords are accepted for
    compatibility.
    """

    _child_init_cnt: ClassVar[dict[str, int]] = {}

    def __init__(
        self,
        *,
        enable_get_runtime_state_dict: bool = False,
        debug_v_level: int = -1,
        debug_ranks: int | list[int] | None = None,
        debug_max_py_stack_depth: int = 2,
        debug_only_user_py_stack: bool = True,
        debug_op_repr_with_py_stack: bool = False,
    ) -> None:
        kind = type(self).__name__
        count = Graph._child_init_cnt.get(kind, 0)
        Graph._child_init_cnt[kind] = count + 1
        set_ = object.__setattr__
        set_(self, "_name", f"{kind}_{count}")
        set_(self, "_modules", OrderedDict())
        set_(self, "_stages", {})
        set_(self, "_optimizers", [])
        self.config = GraphConfig()
        self._job: Any = None
        self._trace: Trace | None = None
        self._randomness: GraphRandomness | None = None
        self._outputs: Any = None
        self._arguments: Any = None
        self._output_values: dict[int, Value] = {}
        self._input_types: list[Any] = []
        self._input_names: list[str] = []
        self._initial_step = 0
        self._pending_state: dict[str, Any] = {}
        self._debug_v_level, self._debug_ranks = debug_v_level, debug_ranks

    # ---- what users override and read ------------------------------------------------------------

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The computation, written with tensors and modules; traced at the first call."""
        raise BuildMissingError(
            f"{type(self).__name__}: nn.Graph.build must be overridden: "
            "it says what the graph computes"
        )

    @staticmethod
    def trace(function: Callable[..., Any]) -> Graph:
        """Decorator: a graph that computes what the function does; traced at the first call."""

        def build(_: Graph, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        name = getattr(function, "__name__", type(function).__name__)
        made: Graph = type(name, (Graph,), {"build": build, "__doc__": function.__doc__})()
        return made

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def training(self) -> bool:
        return self.config.training

    @property
    def is_compiled(self) -> bool:
        return self._job is not None

    def add_optimizer(self, optim: Any, *, lr_sch: Any = None, is_sparse: bool = False) -> None:
        """Makes the graph a training graph: it clips, updates and resets gradients, and follows
        `lr_sch`, by itself.

        The graph works out the learning rate of each step from `lr_sch`, which it does not step:
        `optim.param_groups[i]["lr"]` and `lr_sch.get_last_lr()` stay as they are, and calling
        `lr_sch.step()` is neither needed nor has an effect on the graph.
        """
        if self.is_compiled:
            raise GraphError(f"add_optimizer: graph {self.name} is compiled already")
        bound = {id(p) for o in self._optimizers for p in o.parameters()}
        added = GraphOptimizer(optim, lr_sch, len(self._optimizers))
        for parameter in added.parameters():
            if id(parameter) in bound:
                name = self._tensor_names().get(id(parameter), f"a parameter {parameter.type}")
                raise ValueError(f"{name} is already bound to another optimizer.")
        self._optimizers.append(added)
        self.config._training = True

    def debug(
        self,
        v_level: int = -1,
        *,
        ranks: int | list[int] | None = None,
        max_py_stack_depth: int = 2,
        only_user_py_stack: bool = True,
        op_repr_with_py_stack: bool = False,
    ) -> None:
        """Set how much the first call prints; see the class."""
        if not -1 <= v_level <= 3:
            raise AssertionError(f"the min verbose level is -1, and the max is 3, got {v_level}")
        self._debug_v_level, self._debug_ranks = v_level, ranks

    # ---- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self._modules[name] = value
            self.__dict__.pop(name, None)
            return
        if isinstance(value, Optimizer):
            raise AttributeError(
                f"'{type(self).__name__}' object: "
                "to add an optimizer call self.add_optimizer(optimizer)"
            )
        if isinstance(value, Tensor):
            raise AttributeError(
                f"'{type(self).__name__}' object: a tensor cannot be an attribute of a graph; "
                "make it a parameter or buffer of a module"
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if modules is None:
            kind = type(self).__name__
            raise NotInitializedError(
                f"'{kind}' object has no attribute '{name}': it is no graph yet; "
                f"{kind}.__init__ must call super().__init__() before anything else"
            )
        if name in modules:
            return Proxy(modules[name], self, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def _proxied(self, value: Any, path: str) -> Any:
        return Proxy(value, self, path) if isinstance(value, Module) else value

    # ---- calls -----------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        if self._job is None:
            self._compile(*args, **kwargs)
        start = perf_counter()
        inputs = self._arguments.tensors((args, kwargs))
        feeds: dict[str, Any] = {f"input.{i}": x._array for i, x in enumerate(inputs)}
        step = self._job.step
        for optimizer in self._optimizers:
            optimizer.feed(step, feeds)
        if self._randomness is not None:
            self._job.draw(self._randomness.now())
        results = self._job.run(feeds)
        if self._randomness is not None:
            self._randomness.skip_step()
        for optimizer in self._optimizers:
            optimizer.advance()
        for x in self._trace.variables.values():  # type: ignore[union-attr]
            x._version[0] += 1
        if self.training:
            samples = inputs[0].type.shape[0] if inputs and inputs[0].type.shape else 0
            METRICS.step(self.name, perf_counter() - start, samples, self._job.step - 1)
        return self._assemble(results)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """Traces, compiles and binds, without running."""
        if self._job is not None:
            return
        kwargs = dict(sorted(kwargs.items()))
        check_inputs(self.name, (args, kwargs))
        self._say(0, "tracing")
        start = perf_counter()
        trace = self._trace_build((args, kwargs))
        if not trace.graph.num_nodes:
            raise GraphError(
                f"graph {self.name} has nothing to run: build() takes no tensor and reads none"
            )
        traced = perf_counter()
        self._say(0, f"traced {len(trace.graph)} nodes in {traced - start:.3f} s; compiling")
        self._input_names = input_names(self.name, args, kwargs)
        text = str(trace.graph) if self._debug_v_level >= 2 else ""  # compiling edits it
        config = JobConfig(
            self.name,
            self.config.num_pieces,
            self.config.order_mode,
            self.config.auto_parallel,
            **boxing_settings.current().job_fields(),
        )
        variables = {name: _contiguous(x) for name, x in trace.variables.items()}
        index = next((x._device.index for x in trace.variables.values()), 0)
        spanned = _ranks_that_draw_together(trace.graph)
        self._job = compile_and_bind(trace.graph, config, variables, index)
        self._job.step = self._initial_step
        self._trace = trace
        self._randomness = _randomness(trace, spanned)
        self._output_values = {
            int(n.attrs["index"]): n.inputs[0] for n in self._job.bound.plan.graph.of_kind("output")
        }
        self._say_compiled(perf_counter() - traced, text)

    def _trace_build(self, given: Any) -> Trace:
        """given: (args, kwargs)."""
        pieces = self.config.num_pieces
        trace = Trace(self.name, world().rank, pieces, self._names(), self._owners())
        trace.paths = self._paths()
        trace.stage_of = self._stages
        trace.stages = _stages_by_placement(self._stages)
        for optimizer in self._optimizers:
            for parameter in optimizer.parameters():
                trace.hide_gradient(parameter)
        try:
            # Whether the first call is made inside no_grad() says nothing about the graph.
            with trace.active(), set_grad_enabled(True):
                self._record(trace, given)
        except OneFlowError as error:
            locate(error)
            raise
        finally:
            trace.restore_gradients()
            trace.draws.close()
        self._arguments = Arguments(self.name, given)
        self._input_types = self._arguments.metas
        return trace

    def _record(self, trace: Trace, given: Any) -> None:
        pieces = self.config.num_pieces
        traced = iter([_feed(trace, i, x, pieces) for i, x in enumerate(tensors_of(given))])
        args, kwargs = map_tensors(given, lambda _: next(traced))
        buffers = self._buffers()
        outputs = self.build(*args, **kwargs)
        for module, name, buffer in buffers:
            _keep_buffer(module, name, buffer)
        if self._optimizers and not any(o.has_gradients() for o in self._optimizers):
            raise GraphError(
                f"graph {self.name} has an optimizer, but build() gave no gradients; "
                "call backward() on the loss inside build()"
            )
        trace.draws.end_pieces()
        for optimizer in self._optimizers:
            optimizer.trace(trace)
        object.__setattr__(self, "_outputs", outputs)
        for i, x in enumerate(tensors_of(outputs)):
            trace.output(x, i)

    def _assemble(self, results: dict[int, Any]) -> Any:
        """The outputs in the structure that `build` returned."""
        traced = iter(enumerate(tensors_of(self._outputs)))

        def result(_: Tensor) -> Tensor:
            index, x = next(traced)
            return _output(x, self._output_values[index], results.get(index))

        return map_tensors(self._outputs, result)

    # ---- names and state -------------------------------------------------------------------------

    def _names(self) -> dict[int, str]:
        """Name of every tensor that the graph knows beforehand."""
        names = self._tensor_names()
        for optimizer in self._optimizers:
            for parameter in optimizer.parameters():
                if id(parameter) not in names:
                    raise ValueError(
                        f"Parameter <{parameter.type}> is not in the corresponding "
                        "nn.Graph/nn.Module."
                    )
                for key, tensor in optimizer.state_of(parameter).items():
                    if isinstance(tensor, Tensor):
                        names[id(tensor)] = f"{names[id(parameter)]}-{key}"
        return names

    def _tensor_names(self) -> dict[int, str]:
        """Names of parameters and buffers."""
        names: dict[int, str] = {}
        for prefix, module in self._modules.items():
            for name, tensor in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
                names.setdefault(id(tensor), name)
        return names

    def _owners(self) -> dict[int, Tensor]:
        """Every tensor that has a name, by the id of its array."""
        states = _tensors_by_name(self).values()
        modules = self._modules.values()
        known = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        return {id(t._array): t for t in (*known, *states) if t._array is not None}

    def _buffers(self) -> list[tuple[Any, str, Tensor]]:
        """Every buffer, with the module that holds it and its name there."""
        return [
            (module, name, buffer)
            for top in self._modules.values()
            for module in top.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def _paths(self) -> dict[int, str]:
        paths: dict[int, str] = {}
        for prefix, module in self._modules.items():
            for name, child in module.named_modules(prefix=prefix):
                paths.setdefault(id(child), name)
        return paths

    def export(self, path: Any, **options: Any) -> Any:
        """Writes this graph with its variables, its optimizers' state and its input pipeline to
        one file, which a cluster runs without any code of the user; see `flow.jobs.save` for the
        options (data, steps, record, checkpoint_every, ...).
        """
        return save(self, path, **options)

    def _trace_apart(self, given: Any) -> tuple[Trace, Any]:
        """A trace for (args, kwargs) and what build() returned, without making it the graph's."""
        kept = self._outputs, self._arguments, self._input_types
        try:
            return self._trace_build(given), self._outputs
        finally:
            self._arguments, self._input_types = kept[1:]
            object.__setattr__(self, "_outputs", kept[0])

    @property
    def _steps_done(self) -> int:
        return self._job.step if self._job is not None else self._initial_step

    def state_dict(self, destination: Any = None) -> OrderedDict[str, Any]:
        """Module states by module name, optimizer states by "<variable>-<key>", the step count, and
        of a graph that draws random numbers the state of the default generator.
        """
        result: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
        for name, module in self._modules.items():
            result[name] = module.state_dict()
        names = self._names()
        for optimizer in self._optimizers:
            for parameter in optimizer.parameters():
                for tensor in optimizer.state_of(parameter).values():
                    if isinstance(tensor, Tensor):
                        result[names[id(tensor)]] = tensor
        step = self._steps_done
        result[STEP_KEY] = wrap(np.array(step, dtype=int64.np))
        if self._randomness is not None:
            result[RANDOM_KEY] = get_rng_state()
        return result

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        """Takes what `state_dict` gave, the default generator's state included; only before the
        first call. Raises GraphError for what does not fit.
        """
        if self.is_compiled:
            raise GraphError("load_state_dict must be called before the graph's first call")
        known = {n: t for t, n in _tensors_by_name(self).items()}
        missing = []
        for name, module in self._modules.items():
            if name in state_dict:
                module.load_state_dict(state_dict[name], strict)
            else:
                missing.append(name)
        for tensor, name in known.items():
            if name in state_dict:
                tensor.copy_(state_dict[name])
            else:
                missing.append(name)
        if STEP_KEY in state_dict:
            self._initial_step = int(_everywhere(state_dict[STEP_KEY]).item())
            for optimizer in self._optimizers:
                optimizer.resume(self._initial_step)
        if RANDOM_KEY in state_dict:
            set_rng_state(_everywhere(state_dict[RANDOM_KEY]))
        own = {STEP_KEY, RANDOM_KEY}
        unexpected = set(state_dict) - set(self._modules) - set(known.values()) - own
        if strict and (missing or unexpected):
            raise GraphError(
                f"load_state_dict of {self.name}: missing {sorted(missing)}, "
                f"unexpected {sorted(unexpected)}"
            )

    # ---- printing --------------------------------------------------------------------------------

    def _say_compiled(self, seconds: float, text: str) -> None:
        bound = self._job.bound
        plan = bound.plan
        self._say(
            0,
            f"compiled in {seconds:.3f} s: {len(plan.actors)} actors, {len(plan.registers)} "
            "registers; registers and scratch memory "
            f"of this rank {bound.arena_nbytes} bytes (least possible: {bound.arena_bound})",
        )
        if self._debug_v_level >= 1:
            self._say(1, describe(self, with_ops=False))
        self._say(2, text)
        if self._debug_v_level >= 3:
            self._say(3, str(plan))

    def _say(self, level: int, text: str) -> None:
        if self._debug_v_level < level:
            return
        ranks = [0] if self._debug_ranks is None else self._debug_ranks
        listed = [ranks] if isinstance(ranks, int) else ranks
        if -1 in listed or world().rank in listed:
            print(f"[GRAPH:{self.name}] {text}", flush=True)

    def __repr__(self) -> str:
        return describe(self)


def _everywhere(x: Tensor) -> Tensor:
    """The tensor on every rank, also where a checkpoint was read by one rank only."""
    if not x.is_global:
        return x
    everywhere = Placement("cpu", list(range(world().world_size)))
    found: Tensor = x.to_global(placement=everywhere, sbp=BROADCAST).to_local()
    return found


def _tensors_by_name(graph: Graph) -> dict[str, Tensor]:
    """Optimizer states by name."""
    names = graph._names()
    return {
        names[id(t)]: t
        for o in graph._optimizers
        for p in o.parameters()
        for t in o.state_of(p).values()
        if isinstance(t, Tensor)
    }


def _feed(trace: Trace, i: int, x: Tensor, pieces: int) -> Tensor:
    """The traced tensor that stands for input `i`; with more pieces: for one piece of it."""
    whole = trace.input(f"input.{i}", x.type, x)
    if pieces == 1:
        return whole
    if not x.type.shape or x.type.shape[0] % pieces:
        raise ShapeError(
            f"input {i} {x.type}: dim 0 must be divisible by the {pieces} "
            "gradient accumulation steps"
        )
    shape = (x.type.shape[0] // pieces, *x.type.shape[1:])
    piece = trace.structural("unpack", whole, x.type.with_shape(shape), {})
    piece.value.sbp = whole.value.sbp
    return piece


def _keep_buffer(module: Any, name: str, buffer: Tensor) -> None:
    """A buffer that forward() replaced (`self.count = self.count + 1`) is overwritten instead: the
    module keeps a tensor that has data.
    """
    new = module._buffers.get(name)
    if new is buffer or new is None or new.value is None:
        return
    module._buffers[name] = buffer
    if new.type != buffer.type:
        raise GraphError(
            f"buffer {name} of {type(module).__name__} is {buffer.type}, but forward() sets it to "
            f"{new.type}; in a graph a buffer keeps its shape and dtype"
        )
    with no_grad():
        buffer.copy_(new)


def _stages_by_placement(stages: dict[int, Stage]) -> dict[Any, int]:
    return {s.placement: s.id for s in stages.values() if s.placement is not None}


def _ranks_that_draw_together(graph: LogicalGraph) -> list[int]:
    """All ranks of a graph that has random numbers on more than one; else none."""
    draws = [n for n in graph if not n.is_structural and find_op(n.op).is_random]
    if all(n.placement.size == 1 for n in draws):
        return []
    return sorted({r for n in graph for r in n.placement.rank_ids})


def _randomness(trace: Trace, ranks: list[int]) -> GraphRandomness | None:
    """None: the graph calls no generator."""
    counts, graph = trace.draws.counts, trace.graph
    return GraphRandomness(graph.name, counts, graph.num_pieces, ranks) if counts else None


def _contiguous(x: Tensor) -> Any:
    """The array of a variable; kernels write into it, so it is made contiguous in place."""
    array = x._array
    if array is not None and not array.flags.c_contiguous:
        x._array = array = array.copy()
    return array


def _output(x: Tensor, value: Value, array: Any) -> Tensor:
    if x._placement is None:
        return wrap(array)
    if array is None:  # this rank is outside the output's placement
        array = np.empty((0,) * max(value.type.ndim, 1), value.type.dtype.np)
    assert value.sbp is not None
    return wrap_global(array, value.type, value.placement, value.sbp)
