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

import inspect
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, NoReturn

from oneflow.amp.grad_scaler import GradScaler
from oneflow.core.device import DeviceLike
from oneflow.core.errors import GraphError
from oneflow.core.metrics import METRICS
from oneflow.graph.arguments import key_of
from oneflow.graph.compile_log import CompileLog
from oneflow.graph.compiling import (
    Compiled,
    compile_built,
    say_recordings,
    trace_graph,
)
from oneflow.graph.config import GraphConfig
from oneflow.graph.debugging import Debugging, check_debugging
from oneflow.graph.describe import describe
from oneflow.graph.drawing import graph_dot, plan_dot, plan_svg
from oneflow.graph.explaining import Explanation, explain
from oneflow.graph.memory_limit import report_of
from oneflow.graph.memory_report import MemoryReport
from oneflow.graph.names import model_names, model_tensors
from oneflow.graph.optimizer import GraphOptimizer, GraphScaler
from oneflow.graph.plans import CompiledNames, Plans, check_shared
from oneflow.graph.profiling import GraphProfile
from oneflow.graph.proxy import Proxy
from oneflow.graph.runtime_state import load_runtime_state, runtime_state_of, runtime_state_to
from oneflow.graph.spec import GraphSpec
from oneflow.graph.state import load_state, state_of
from oneflow.io.files import AnyPath
from oneflow.jobs.export import save
from oneflow.nn.module import Module
from oneflow.optim.lr_scheduler import LRScheduler
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.grad_mode import switches
from oneflow.tensor.tensor import Tensor

PLANS = 10
"""Plans of a graph that are kept, unless it is told another number."""


class BuildMissingError(GraphError, NotImplementedError):
    """A graph class without `build`."""


class NotInitializedError(GraphError, AttributeError):
    """A graph whose class has an `__init__` that does not call the one of nn.Graph."""


def _no_build(self: Graph, *_: object, **__: object) -> NoReturn:
    raise BuildMissingError(
        f"{type(self).__name__}: nn.Graph.build must be overridden: it says what the graph computes"
    )


class Graph:
    """Base of user graphs; `build` must be overridden.

    A call after modules were switched between training and evaluation, or parameters to need a
    gradient or not, traces `build` again; a plan for each mode is kept.

    debug_v_level: 0 prints the stages of the first call, 1 the modules, 2 a line for each op, 3 the
    compiled plan as well.
    debug_ranks: ranks that print; None: rank 0; -1: all.
    debug_max_py_stack_depth: lines of code that each op tells from level 2 on, or in `print(graph)`
    with debug_op_repr_with_py_stack; else it is one.
    debug_only_user_py_stack: False counts lines of this package, too.
    enable_get_runtime_state_dict: see `enable_save_runtime_state_dict`.
    """

    _child_init_cnt: ClassVar[dict[str, int]] = {}
    _spec: GraphSpec

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
        name = f"{kind}_{count}"
        self._spec = GraphSpec(name, Debugging(name), Plans(PLANS))
        self._profile: GraphProfile | None = None
        """Profile that records from the first call on."""
        self._lets_share = True
        self.debug(
            debug_v_level,
            ranks=debug_ranks,
            max_py_stack_depth=debug_max_py_stack_depth,
            only_user_py_stack=debug_only_user_py_stack,
            op_repr_with_py_stack=debug_op_repr_with_py_stack,
        )

    # ---- what users override and read ------------------------------------------------------------

    build: Callable[..., Any] = _no_build
    """The computation, written with tensors and modules; traced at the first call."""

    @staticmethod
    def trace(function: Callable[..., Any]) -> Graph:
        """Make a graph of a function, as a decorator; it is traced at the first call."""

        def build(_: Graph, *args: object, **kwargs: object) -> Any:
            return function(*args, **kwargs)

        name = getattr(function, "__name__", type(function).__name__)
        made: Graph = type(name, (Graph,), {"build": build, "__doc__": function.__doc__})()
        return made

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def config(self) -> GraphConfig:
        """The options by which the graph is compiled."""
        return self._spec.config

    @property
    def training(self) -> bool:
        return self.config.training

    @property
    def is_compiled(self) -> bool:
        return self._spec.is_compiled

    def add_optimizer(
        self, optim: Optimizer, *, lr_sch: LRScheduler | None = None, is_sparse: bool = False
    ) -> None:
        """Makes the graph a training graph: it clips, updates and resets gradients, and follows
        `lr_sch`, by itself.

        The graph works out the learning rate of each step from `lr_sch`, which it does not step:
        `optim.param_groups[i]["lr"]` and `lr_sch.get_last_lr()` stay as they are, and calling
        `lr_sch.step()` is neither needed nor has an effect on the graph.

        is_sparse: warns that gradients are dense here; a row that no index named is updated, too.
        """
        if is_sparse:
            warnings.warn(
                "add_optimizer(is_sparse=True) changes nothing here: gradients are dense, so rows "
                "of an embedding that no index names take part in each update; "
                "flow.one_embedding updates those alone that were looked up",
                stacklevel=2,
            )
        spec = self._spec
        spec.check_open("add_optimizer")
        bound = set(map(id, spec.parameters()))
        added = GraphOptimizer(optim, lr_sch, len(spec.optimizers))
        for parameter in added.parameters():
            if id(parameter) in bound:
                name = model_names(spec).get(id(parameter), f"a parameter {parameter.meta}")
                raise ValueError(f"{name} is already bound to another optimizer.")
        spec.optimizers.append(added)
        spec.config.training = True

    def set_grad_scaler(self, grad_scaler: GradScaler | None) -> None:
        """Lets backward passes begin with the scaler's scale, and divides gradients by it.

        A step with a gradient that is not finite leaves parameters and states as they are; the
        scale grows and shrinks as in eager code. It is in the graph's state, and `grad_scaler`
        shows it. The learning rate follows the graph's calls, also those that were left out.
        """
        self._spec.check_open("set_grad_scaler")
        if not isinstance(grad_scaler, GradScaler | None):
            kind = type(grad_scaler).__name__
            raise TypeError(f"set_grad_scaler takes a GradScaler or None, got {kind}")
        self._spec.scaler = None
        if grad_scaler is not None and grad_scaler.is_enabled():
            self._spec.scaler = GraphScaler(grad_scaler)

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
        check_debugging(v_level, max_py_stack_depth)
        debugging, tells_stack = self._spec.debugging, v_level >= 2 or op_repr_with_py_stack
        debugging.v_level, debugging.ranks = v_level, ranks
        debugging.stack = (max_py_stack_depth, only_user_py_stack) if tells_stack else None

    def profile(self, steps: int = 10, folder: str | Path = "trace") -> GraphProfile:
        """Record the acts and kernels of the next steps, on every rank that calls this.

        steps: of this graph. folder: gets `trace-rank<N>.json.gz` of each rank, for Perfetto.
        Returns the profile, whose `close` waits for the file, and whose text has tables of the time
        by op, module, source line and kernel, and the time of each actor and each cause to wait.
        Raises ValueError for less than one step, GraphError if something records the graph already.
        """
        profile, compiled = GraphProfile(self.name, steps, folder), self._spec.plans.now
        if compiled is not None:
            profile.record(compiled.job.executor)
        else:
            self._profile = profile
        return profile

    def to_dot(self, ops: bool = False) -> str:
        """The compiled plan as dot text, for Graphviz: actors by placement, and registers.

        ops: ops by module, and the values between them, instead.
        Raises GraphError before the graph is compiled.
        """
        plan = self._compiled("to_dot").job.bound.plan
        return graph_dot(self.name, plan.graph) if ops else plan_dot(self.name, plan)

    def to_svg(self) -> str:
        """The compiled plan as a picture: a lane for each placement, actors by level, registers.

        Raises GraphError before the graph is compiled.
        """
        return plan_svg(self.name, self._compiled("to_svg").job.bound.plan)

    def _compiled(self, asked: str) -> Compiled:
        compiled = self._spec.plans.now
        if compiled is None:
            raise GraphError(f"{asked}: graph {self.name} is not compiled yet; call it first")
        return compiled

    # ---- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, Module):
            self._spec.modules[name] = value
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
        spec = self.__dict__.get("_spec")
        if spec is None:
            kind = type(self).__name__
            raise NotInitializedError(
                f"'{kind}' object has no attribute '{name}': it is no graph yet; "
                f"{kind}.__init__ must call super().__init__() before anything else"
            )
        if name in spec.modules:
            return Proxy(spec.modules[name], spec, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    # ---- calls -----------------------------------------------------------------------------------

    def __call__(self, *args: object, **kwargs: object) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        spec = self._spec
        plans, optimizers = spec.plans, spec.optimizers
        compiled = plans.now
        if compiled is None or plans.takes_shapes or plans.switches != switches.count:
            compiled = self._choose_plan(args, kwargs)
        start = perf_counter()
        job, randomness = compiled.job, compiled.randomness
        inputs = compiled.arguments.tensors((args, kwargs))
        if [x for x in inputs if x.value is not None]:
            raise GraphError(
                f"graph {self.name} is called in the build() of another graph, where its inputs "
                "have no values yet; call there the module or function that it is made of"
            )
        feeds = {f"input.{i}": x._array for i, x in enumerate(inputs)}
        if compiled.sources is not None:
            feeds |= compiled.sources.take()
        step = job.step
        for optimizer in optimizers:
            optimizer.feed(step, feeds)
        if randomness is not None:
            job.draw(randomness.now())
        if compiled.halves is not None:
            compiled.halves.refresh()
        results = job.run(feeds)
        if job.bound.recordings is not None:
            say_recordings(spec, job.bound.recordings)
        if randomness is not None:
            randomness.skip_step()
        for optimizer in optimizers:
            optimizer.advance()
        for x in compiled.variables.values():
            x._version[0] += 1
        if compiled.halves is not None:
            compiled.halves.keep()
        if spec.config.training:
            samples = inputs[0].meta.shape[0] if inputs and inputs[0].meta.shape else 0
            METRICS.step(spec.name, perf_counter() - start, samples, job.step - 1)
        return compiled.assemble(results)

    def _compile(self, *args: object, **kwargs: object) -> Compiled:
        """Traces, compiles and binds, without running."""
        plans = self._spec.plans
        if plans.now is not None:
            return plans.now
        if plans.built is None or not plans.built.modes.hold():
            self.build_graph(*args, **kwargs)
        return self._finish()

    def build_graph(self, *args: object, **kwargs: object) -> None:
        """Traces `build` for these arguments: the first half of the first call."""
        self._spec.check_open("build_graph")
        given = args, dict(sorted(kwargs.items()))
        self._spec.plans.built = trace_graph(self._spec, self.build, *given)

    def finish_compile_and_init_runtime(self) -> None:
        """Compile the graph that `build_graph` has traced, and bind it: the second half of the
        first call, but for the run.
        """
        if self._spec.plans.built is None:
            raise GraphError(
                f"finish_compile_and_init_runtime: call build_graph of {self.name} first"
            )
        self._finish()

    def _finish(self) -> Compiled:
        plans = self._spec.plans
        built, plans.built = plans.built, None
        assert built is not None
        compiled = compile_built(self._spec, built)
        if self._profile is not None:
            self._profile.record(compiled.job.executor)
            self._profile = None
        return compiled

    @staticmethod
    def with_dynamic_input_shape(
        *, size: int = PLANS, enable_shared: bool = True
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Decorator of `__init__`: the graph takes inputs of several shapes, dtypes and layouts,
        and has a plan for each.

        size: plans that are kept; beyond it the one goes that was not used for the longest time,
        but never the first.  enable_shared: all plans work on the same variables; False raises
        ConfigError.
        """
        check_shared(enable_shared)
        if size < 1:
            raise ValueError(f"with_dynamic_input_shape: size must be at least 1, got {size}")

        def decorate(init: Callable[..., None]) -> Callable[..., None]:
            @wraps(init)
            def initialize(self: Graph, *args: object, **kwargs: object) -> None:
                init(self, *args, **kwargs)
                self._spec.plans.takes_shapes = True
                self._spec.plans.set_cache_size(size)

            return initialize

        return decorate

    def _choose_plan(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Compiled:
        """The plan for such arguments and for the modes in which the modules are now."""
        plans = self._spec.plans
        before, steps = plans.now, plans.steps_done
        key = key_of((args, kwargs)) if plans.takes_shapes else None
        if before is None or not plans.fits(key):
            plans.first_step, plans.now = steps, plans.get(key)
            try:
                before = self._compile(*args, **kwargs)
                before.job.step = steps
            finally:
                plans.now = before
        plans.switches = switches.count
        return before

    def enable_shared(self, mode: bool = True) -> None:
        """Let other graphs `share_from` this one, as they may unless this says False."""
        self._lets_share = bool(mode)

    def share_from(self, graph: Graph) -> None:
        """Works on the modules, optimizers and gradient scaler of another graph instead of its own,
        so that both have one set of variables. Modules are matched by their attribute names.

        Each graph counts its own calls for its learning rates, from the other's number of now on.
        """
        if not isinstance(graph, Graph):
            raise TypeError(f"share_from takes a Graph, got {type(graph).__name__}")
        mine, other = self._spec, graph._spec
        mine.check_open("share_from")
        if not graph._lets_share:
            raise GraphError(
                f"share_from: graph {graph.name} is not to be shared; it has enable_shared(False)"
            )
        missing = mine.modules.keys() - other.modules.keys()
        if missing:
            raise GraphError(f"share_from: graph {graph.name} has no {', '.join(sorted(missing))}")
        for name in mine.modules:
            mine.modules[name] = other.modules[name]
        if mine.optimizers:
            mine.optimizers = other.optimizers
        mine.stages, mine.recomputed = other.stages, other.recomputed
        mine.scaler, mine.variables = other.scaler, other.variables
        mine.plans.first_step = other.plans.steps_done

    def memory_report(self) -> MemoryReport:
        """The memory analysis of this rank: `str()` of it is a table, `table()` has every register
        and temporary, `plot(path)` draws them. Once compiled.
        """
        return report_of(self._spec, self._compiled("memory_report"))

    def compile_log(self) -> CompileLog:
        """The stages of tracing, compiling and binding so far, and the first run: seconds, and the
        memory of the process after each. `str()` of it is a table. "compile" is all passes
        together, or reading the plan that was compiled before.
        """
        return self._spec.compile_log

    def explain(self) -> Explanation:
        """Explain how the graph lies and why, with the costs of the three next best layouts:
        estimated time of a step, bytes moved between ranks, bytes on a rank. `str()` of it is a
        table.

        Once traced, by a call or `build_graph`; it searches, and takes some seconds for a deep
        graph. Raises GraphError before that, and for a graph whose plan was loaded.
        """
        return explain(self._spec)

    # ---- state -----------------------------------------------------------------------------------

    export = save
    """Writes this graph with its variables, its optimizers' state and its input pipeline to one
    file, which a cluster runs without any code of the user; see `flow.jobs.save`."""

    def save_job_file(self, path: AnyPath) -> None:
        """Write the job file of `export` for inference, with inputs like those of the last call as
        the example: `flow.save(graph, path)`. In a folder it is `model.job`.

        Raises GraphError before the first call, JobFileError for arguments that are no tensors.
        """
        compiled = self._spec.plans.now
        if compiled is None:
            raise GraphError("graph must be compiled first.")
        path = Path(os.fspath(path))
        examples = compiled.arguments.examples(inspect.signature(self.build))
        save(self, path / "model.job" if path.is_dir() else path, inputs=examples)

    # Names inside of upstream's graphs, which onediff reads, answered by what stands for them.

    @property
    def _dynamic_input_graph_cache(self) -> Plans | None:
        return self._spec.plans if self._spec.plans.takes_shapes else None

    @property
    def _c_nn_graph(self) -> CompiledNames:
        return CompiledNames(self._spec.plans)

    @property
    def _blocks(self) -> dict[str, Proxy]:
        return {name: getattr(self, name) for name in self._spec.modules}

    def _state(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        yield from model_tensors(self._spec)

    def state_dict(self, destination: OrderedDict[str, Any] | None = None) -> OrderedDict[str, Any]:
        """Module states by module name, optimizer states by "<variable>-<key>", the step count, and
        of a graph that draws random numbers the state of the default generator.
        """
        return state_of(self._spec, destination)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take the result of `state_dict`, the default generator's state included; only before the
        first call. Raises GraphError for entries that do not fit.
        """
        load_state(self._spec, state_dict, strict)

    def enable_save_runtime_state_dict(self, mode: bool = True) -> None:
        """Says that `runtime_state_dict` will be called; it may be in any case."""

    def runtime_state_dict(
        self, destination: OrderedDict[str, Any] | None = None, with_eager: bool = False
    ) -> OrderedDict[str, Any]:
        """The compiled plans, the variables that only the graph has (states of optimizers, captured
        tensors), the step count, and how the graph is called; for `flow.save`, and on each rank its
        own.

        with_eager: parameters and buffers of its modules are in it, too. Without them a graph that
        loads it keeps the values of its own modules.
        """
        return runtime_state_of(self._spec, destination, with_eager)

    def load_runtime_state_dict(
        self, state_dict: Mapping[str, Any], *, warmup_with_run: bool = True
    ) -> None:
        """Takes over compiled plans and the saved values of variables: nothing is traced nor
        compiled.

        Only before the first call; the graph has the same modules and optimizers as the one that
        was saved, with tensors of the same types and layouts. warmup_with_run: runs the plan once
        on zeros, if it overwrites nothing and draws nothing.
        """
        load_runtime_state(self._spec, state_dict, warmup_with_run)

    @staticmethod
    def runtime_state_dict_to(
        state_dict: Mapping[str, Any], device: DeviceLike
    ) -> OrderedDict[str, Any]:
        """The same state with its variables on another device of the same kind."""
        return runtime_state_to(state_dict, device)

    def __repr__(self) -> str:
        return describe(self._spec)
