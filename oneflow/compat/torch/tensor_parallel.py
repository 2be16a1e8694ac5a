"""`torch.distributed.tensor.parallel`: layers whose parameters lie in parts over a mesh."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.compat.torch.dtensor import (
    Placement,
    Replicate,
    Shard,
    as_global,
    as_local,
    distribute_parts,
    redistribute,
)
from oneflow.core.errors import CallError
from oneflow.nn.module import Module
from oneflow.tensor.eager_global import local_tensors_as_copies
from oneflow.tensor.tensor import Tensor

Layout = Placement | None


class ParallelStyle(ABC):
    """A way to lay a module out over a mesh."""

    @abstractmethod
    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        """Lay a module out, with its inputs and outputs."""


def _laid(x: object, mesh: DeviceMesh, have: Layout, wanted: Layout) -> object:
    """A local tensor that lies as `have`, or a global one, as a global one that lies as `wanted`.
    None: it stays as it is.
    """
    if not isinstance(x, Tensor) or have is None:
        return x
    made = x if x.is_global else as_global(x, mesh, [have])
    if wanted is not None and wanted != have:
        made = redistribute(made, mesh, [wanted])
    return made


def _returned(x: object, mesh: DeviceMesh, wanted: Layout, is_local: bool) -> object:
    if not isinstance(x, Tensor) or not x.is_global or wanted is None:
        return x
    made = redistribute(x, mesh, [wanted])
    return as_local(made) if is_local else made


def _each(
    values: object,
    change: Callable[[object, Layout, Layout], object],
    layouts: Sequence[Layout],
    others: Sequence[Layout],
) -> Any:
    """`change(value, layout, other)` of each value that has a layout; the others stay."""
    given = values if isinstance(values, tuple) else (values,)
    if len(given) < len(layouts):
        raise CallError(f"{len(layouts)} layouts are given for {len(given)} values")
    made = [change(x, a, b) for x, a, b in zip(given, layouts, others, strict=False)]
    made += given[len(layouts) :]
    return tuple(made) if isinstance(values, tuple) else made[0]


def _as_tuple(layouts: object) -> tuple[Any, ...]:
    return tuple(layouts) if isinstance(layouts, (list, tuple)) else (layouts,)


class _OneLayer(ParallelStyle):
    """A layer of one input and one output. `taken` is how the input lies inside."""

    taken: Placement = Replicate()

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = input_layouts or self._usual_input()
        self.output_layouts = output_layouts or self._usual_output()
        self.use_local_output = use_local_output

    def _usual_input(self) -> Placement:
        return Replicate()

    def _usual_output(self) -> Placement:
        return Replicate()

    def _placed(self, module: Module, name: str, x: Tensor) -> Placement:
        """The way in which a parameter lies."""
        return Replicate()

    def _taken(self, module: Module) -> Placement:
        return self.taken

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        distribute_parts(module, mesh, lambda name, x: [self._placed(module, name, x)])
        taken = self._taken(module)

        def before(_: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            first = _laid(inputs[0], mesh, self.input_layouts, taken)
            return (first, *inputs[1:])

        def after(_: Module, inputs: object, output: object) -> object:
            return _returned(output, mesh, self.output_layouts, self.use_local_output)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


class ColwiseParallel(_OneLayer):
    """A Linear in parts along its outputs, or an Embedding along its features.

    input_layouts: how the input lies; None: whole.  output_layouts: None: in parts along the last
    dim.  use_local_output: give this rank's part, not a global tensor.
    """

    def _usual_output(self) -> Placement:
        return Shard(-1)

    def _placed(self, module: Module, name: str, x: Tensor) -> Placement:
        return Shard(1 if hasattr(module, "num_embeddings") else 0)


class RowwiseParallel(_OneLayer):
    """A Linear in parts along its inputs, whose results are summed, or an Embedding along its rows.

    input_layouts: None: in parts along the last dim, or whole for an Embedding.  output_layouts:
    None: whole.
    """

    def _usual_input(self) -> Placement:
        return Shard(-1)

    def _placed(self, module: Module, name: str, x: Tensor) -> Placement:
        if hasattr(module, "num_embeddings"):
            return Shard(0)
        return Shard(1) if name == "weight" else Replicate()

    def _taken(self, module: Module) -> Placement:
        return Replicate() if hasattr(module, "num_embeddings") else Shard(-1)


class SequenceParallel(_OneLayer):
    """A LayerNorm, RMSNorm or Dropout on a sequence in parts along `sequence_dim`."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.taken = Shard(sequence_dim)
        super().__init__(use_local_output=use_local_output)

    def _usual_input(self) -> Placement:
        return self.taken

    def _usual_output(self) -> Placement:
        return self.taken


class PrepareModuleInput(ParallelStyle):
    """Inputs of a module in another layout: local ones lie as `input_layouts` says, and come in as
    `desired_input_layouts` says; None in either: that one stays. use_local_output: as local
    tensors.
    """

    def __init__(
        self,
        *,
        input_layouts: Layout | Sequence[Layout] = None,
        desired_input_layouts: Layout | Sequence[Layout] = None,
        input_kwarg_layouts: Mapping[str, Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = _as_tuple(input_layouts)
        self.desired_input_layouts = _as_tuple(desired_input_layouts)
        self.by_name = dict(input_kwarg_layouts or {})
        self.wanted_by_name = dict(desired_input_kwarg_layouts or {})
        self.use_local_output = use_local_output

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        def change(x: object, have: Layout, wanted: Layout) -> object:
            made = _laid(x, mesh, have, wanted)
            is_ours = self.use_local_output and isinstance(made, Tensor) and made.is_global
            return as_local(made) if is_ours and isinstance(made, Tensor) else made

        def before(
            _: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if args and self.input_layouts != (None,):
                args = _each(args, change, self.input_layouts, self.desired_input_layouts)
            for name, have in self.by_name.items():
                if name in kwargs:
                    kwargs[name] = change(kwargs[name], have, self.wanted_by_name.get(name, have))
            return args, kwargs

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Outputs of a module in another layout: they lie as `output_layouts` says, and come out as
    `desired_output_layouts` says.
    """

    def __init__(
        self,
        *,
        output_layouts: Layout | Sequence[Layout],
        desired_output_layouts: Layout | Sequence[Layout],
        use_local_output: bool = True,
    ) -> None:
        self.output_layouts = _as_tuple(output_layouts)
        self.desired_output_layouts = _as_tuple(desired_output_layouts)
        self.use_local_output = use_local_output

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        def change(x: object, have: Layout, wanted: Layout) -> object:
            return _returned(_laid(x, mesh, have, None), mesh, wanted, self.use_local_output)

        def after(_: Module, inputs: object, output: object) -> object:
            return _each(output, change, self.output_layouts, self.desired_output_layouts)

        module.register_forward_hook(after)
        return module


class PrepareModuleInputOutput(ParallelStyle):
    """`PrepareModuleInput` and `PrepareModuleOutput` of one module."""

    def __init__(
        self,
        *,
        input_layouts: Layout | Sequence[Layout] = None,
        desired_input_layouts: Layout | Sequence[Layout] = None,
        input_kwarg_layouts: Mapping[str, Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Layout | Sequence[Layout],
        desired_output_layouts: Layout | Sequence[Layout],
        use_local_output: bool = True,
    ) -> None:
        self.input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: Module, mesh: DeviceMesh) -> Module:
        return self.output._apply(self.input._apply(module, mesh), mesh)


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Module:
    """Lay parts of a module out over a mesh of one axis, as a plan says, and return it.

    parallelize_plan: a style for the module itself, or styles by the paths of its parts, in which
    `*` stands for any name; a path that there is not changes nothing, which a warning says. Raises
    CallError for a mesh of more axes.

    Example::

        plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    """
    if device_mesh is None or device_mesh.ndim != 1:
        raise CallError("parallelize_module: device_mesh has one axis; name it: mesh['tp']")
    if isinstance(parallelize_plan, ParallelStyle):
        return parallelize_plan._apply(module, device_mesh)
    for path, style in (parallelize_plan or {}).items():
        found = [part for name, part in module.named_modules() if _fits(name, path)]
        if not found:
            warnings.warn(
                f"parallelize_module: {type(module).__name__} has no part {path!r}, so that row of "
                "the plan changes nothing",
                stacklevel=2,
            )
        for part in found:
            style._apply(part, device_mesh)
    return module


def _fits(name: str, path: str) -> bool:
    """Whether each name of a path fits that of the pattern."""
    parts, patterns = name.split("."), path.split(".")
    if len(parts) != len(patterns):
        return False
    return all(fnmatchcase(part, p) for part, p in zip(parts, patterns, strict=True))


def implicit_replication() -> Any:
    """A block in which local tensors that meet global ones count as copies of one whole."""
    return local_tensors_as_copies()


def loss_parallel() -> Any:
    """A block in which losses take logits in parts along the last dim, as they always do, with
    local targets that are the same on all ranks.
    """
    return local_tensors_as_copies()
