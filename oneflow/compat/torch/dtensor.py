"""`torch.distributed.tensor`: a DTensor is a global tensor, and a Shard, Replicate or Partial one
entry of its SBP.

Gradients are PyTorch's: the gradient of a local tensor comes back in the layout that the tensor
had, where OneFlow's own `to_local` takes it for this rank's summand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from oneflow import comm
from oneflow.autograd.function import Function, FunctionCtx
from oneflow.boxing.boxes import shard_box
from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.core.config import current_config
from oneflow.core.device import META
from oneflow.core.errors import CallError, GraphError, PlacementError
from oneflow.core.operand import Number, ShapeLike
from oneflow.core.placement import Placement as Ranks
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, Split, without_sums
from oneflow.core.tensor_type import TensorType
from oneflow.functional import creation
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.eager_global import empty_shard
from oneflow.tensor.tensor import Tensor, wrap, wrap_global


def is_meta(x: Tensor) -> bool:
    """Whether a tensor, local or global, has no values."""
    return (x._placement or x._device).type == META


class Placement:
    """The way in which a tensor lies along one axis of a mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Return whether it is in parts along that dim, or along any."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return whether all ranks have the whole."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return whether the ranks have summands."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self).__name__, *vars(self).items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Shard(Placement):
    """Parts along dim `dim`."""

    def __init__(self, dim: int) -> None:
        self.dim = dim


class Replicate(Placement):
    """Whole on all ranks."""


class Partial(Placement):
    """Summands on all ranks. reduce_op: "sum" alone is taken."""

    def __init__(self, reduce_op: str = "sum") -> None:
        if reduce_op != "sum":
            raise CallError(f"Partial: a partial {reduce_op} is not supported; reduce it first")
        self.reduce_op = reduce_op


Placements: TypeAlias = "Sequence[Placement] | None"
AxisPlacements: TypeAlias = "tuple[Placement, ...]"


def sbp_of(mesh: DeviceMesh, placements: Placements, ndim: int) -> NdSbp:
    """The SBP that these placements are. Raises PlacementError if there are not as many as axes."""
    given = [Replicate()] * mesh.ndim if placements is None else list(placements)
    if len(given) != mesh.ndim:
        raise PlacementError(f"{len(given)} placements for {mesh.ndim} axes of {mesh}")
    return tuple(_entry(p, ndim) for p in given)


def _entry(placement: Placement, ndim: int) -> Sbp:
    if isinstance(placement, Shard):
        return Split(placement.dim % max(ndim, 1))
    if isinstance(placement, Replicate):
        return BROADCAST
    if isinstance(placement, Partial):
        return PARTIAL
    raise PlacementError(f"a placement is Shard, Replicate or Partial, got {placement!r}")


def placements_of(sbp: NdSbp) -> tuple[Placement, ...]:
    """The placements that an SBP is."""
    return tuple(
        Shard(s.dim) if isinstance(s, Split) else Partial() if s.is_partial else Replicate()
        for s in sbp
    )


# ---- between local and global tensors ------------------------------------------------------------


class _FromLocal(Function):
    """A rank's part as a global tensor; a gradient comes back in the same layout, without sums."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, meta: TensorType, ranks: Ranks, sbp: NdSbp) -> Tensor:
        vars(ctx).update(ranks=ranks, sbp=without_sums(sbp))
        return wrap_global(x._array, meta, ranks, sbp)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Any, ...]:
        laid = grad.to_global(vars(ctx)["ranks"], vars(ctx)["sbp"])
        return wrap(laid._array), None, None, None


class _ToLocal(Function):
    """This rank's part of a global tensor; the gradient of it lies as `sbp` says."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, sbp: NdSbp) -> Tensor:
        vars(ctx).update(meta=x.meta, ranks=x.placement, sbp=sbp)
        return wrap(x._array)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Any, ...]:
        known = vars(ctx)
        return wrap_global(grad._array, known["meta"], known["ranks"], known["sbp"]), None


def as_global(
    x: Tensor, mesh: DeviceMesh, placements: Placements, shape: Sequence[int] | None = None
) -> Tensor:
    """A global tensor of which `x` is this rank's part. shape: of the whole; None: equal parts."""
    _check_values(x, "from_local")
    sbp = sbp_of(mesh, placements, x.meta.ndim)
    if shape is None:
        dims = list(x.meta.shape)
        for size, s in zip(mesh.shape, sbp, strict=True):
            if isinstance(s, Split):
                dims[s.dim] *= size
        shape = dims
    made: Tensor = _FromLocal.apply(x, x.meta.with_shape(tuple(shape)), mesh.placement, sbp)
    return made


def as_local(x: Tensor, grad_placements: Placements = None) -> Tensor:
    """This rank's part. grad_placements: how its gradient lies; None: as `x`, sums apart."""
    _check_values(x, "to_local")
    sbp = sbp_of(_mesh_of(x), grad_placements, x.ndim) if grad_placements else without_sums(x.sbp)
    made: Tensor = _ToLocal.apply(x, sbp)
    return made


def _check_values(x: Tensor, what: str) -> None:
    """Raises GraphError for a traced tensor: a rank's part of it is no value of a graph."""
    if x.value is not None:
        raise GraphError(
            f"DTensor.{what}: {x.meta} is traced, and a graph has whole tensors alone; compile "
            "the parts that have DTensors alone, or local tensors alone"
        )


def _mesh_of(x: Tensor) -> DeviceMesh:
    kind = "cpu" if is_meta(x) else x.placement.type
    return DeviceMesh(kind, x.placement.ranks)


def _without_values(ranks: Ranks) -> Ranks:
    return Ranks(META, ranks.ranks)


def redistribute(
    x: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    *,
    async_op: bool = False,
    **_: object,
) -> Tensor:
    """A global tensor in another layout of its mesh; whole on all ranks if none is named."""
    mesh = device_mesh or _mesh_of(x)
    ranks = _without_values(mesh.placement) if is_meta(x) else mesh.placement
    if ranks != x.placement:
        raise PlacementError(f"redistribute: a DTensor stays on its mesh, {x.placement}")
    made: Tensor = x.to_global(ranks, sbp_of(mesh, placements, x.ndim))
    return made


def full_tensor(x: Tensor, *, grad_placements: Placements = None) -> Tensor:
    """The whole of a global tensor, on every rank of it."""
    return as_local(redistribute(x), grad_placements)


class _IsGlobal(type):
    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Tensor) and x.is_global


class DTensor(metaclass=_IsGlobal):
    """Global tensors under PyTorch's name: `isinstance(x, DTensor)` says whether `x` is one."""

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> Tensor:
        """A global tensor of which this rank has `local_tensor`. shape: of the whole, where the
        parts differ. run_check: replicas are those of the first rank.
        """
        mesh = device_mesh or _default_mesh()
        made = as_global(local_tensor, mesh, placements, shape)
        if run_check and placements and any(p.is_replicate() for p in placements):
            made = distribute_tensor(as_local(made), mesh, placements)
        return made


def _default_mesh() -> DeviceMesh:
    return DeviceMesh("cpu", range(current_config().world_size))


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    *,
    src_data_rank: int | None = 0,
) -> Tensor:
    """A global tensor with the values that one rank of the mesh has, its first if none is named.
    src_data_rank: None: every rank takes its part of its own values, which must be equal.

    The result is a leaf that requires a gradient if `tensor` does.
    """
    mesh = device_mesh or _default_mesh()
    if tensor.is_global:
        return redistribute(tensor, mesh, placements)
    sbp = sbp_of(mesh, placements, tensor.ndim)
    ranks = mesh.placement.rank_ids
    if is_meta(tensor):
        made = creation.empty_like(tensor, placement=_without_values(mesh.placement), sbp=sbp)
        return made.requires_grad_(tensor.requires_grad)
    if current_config().rank not in ranks:
        shard = empty_shard(tensor.meta, mesh.placement)
        return wrap_global(shard, tensor.meta, mesh.placement, sbp)
    values = tensor.detach().clone()
    if src_data_rank is not None and len(ranks) > 1:
        comm.broadcast(values, ranks[src_data_rank], ranks=ranks)
    whole = (BROADCAST,) * mesh.ndim
    made = wrap_global(values._array, values.meta, mesh.placement, whole).to_global(sbp=sbp)
    return made.detach().requires_grad_(tensor.requires_grad)


def distribute_module(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> Module:
    """Let the parameters and buffers of a module be global, as `partition_fn(name, part, mesh)`
    makes them, and whole on all ranks where it makes none. input_fn, output_fn: called as
    `input_fn(module, inputs, mesh)` before and `output_fn(module, outputs, mesh)` after it.
    """
    mesh = device_mesh or _default_mesh()
    for name, part in list(module.named_modules()):
        if partition_fn is not None:
            partition_fn(name, part, mesh)
        distribute_parts(part, mesh, lambda _name, _x: None)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, _, outputs: output_fn(m, outputs, mesh))
    return module


def distribute_parts(
    module: Module, mesh: DeviceMesh, choose: Callable[[str, Tensor], Placements]
) -> None:
    """Let a module's own parameters and buffers be global. choose: their placements by name."""
    for name, x in list(module._parameters.items()):
        if x is not None and not x.is_global:
            made = distribute_tensor(x, mesh, choose(name, x))
            module.register_parameter(name, Parameter(made, requires_grad=x.requires_grad))
    for name, buffer in list(module._buffers.items()):
        if buffer is not None and not buffer.is_global:
            module._buffers[name] = distribute_tensor(buffer, mesh, choose(name, buffer))


def _made_global(
    make: Callable[..., Tensor],
    shape: tuple[ShapeLike, ...],
    mesh: DeviceMesh | None,
    where: Placements,
    **options: object,
) -> Tensor:
    mesh = mesh or _default_mesh()
    dims: Any = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    sbp = sbp_of(mesh, where, len(dims))
    return make(*dims, placement=mesh.placement, sbp=sbp, **options)


def zeros(
    *size: ShapeLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor of zeros."""
    return _made_global(creation.zeros, size, device_mesh, placements, **options)


def ones(
    *size: ShapeLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor of ones."""
    return _made_global(creation.ones, size, device_mesh, placements, **options)


def empty(
    *size: ShapeLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor whose values mean nothing."""
    return _made_global(creation.empty, size, device_mesh, placements, **options)


def full(
    size: Sequence[int],
    fill_value: Number,
    *,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor of one number."""
    mesh = device_mesh or _default_mesh()
    sbp = sbp_of(mesh, placements, len(size))
    where: Any = {"placement": mesh.placement, "sbp": sbp, **options}
    return creation.full(tuple(size), fill_value, **where)


def rand(
    *size: ShapeLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor of random numbers between 0 and 1."""
    return _made_global(creation.rand, size, device_mesh, placements, **options)


def randn(
    *size: ShapeLike,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    **options: object,
) -> Tensor:
    """A global tensor of normal random numbers."""
    return _made_global(creation.randn, size, device_mesh, placements, **options)


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of this rank's part of a tensor, and where it begins in the whole."""
    sbp = sbp_of(mesh, placements, len(global_shape))
    box = shard_box(tuple(global_shape), sbp, mesh.placement, current_config().rank)
    return tuple(box.shape), tuple(box.starts)


def _placements(x: Tensor) -> AxisPlacements:
    return placements_of(x.sbp)


class Spec(NamedTuple):
    """The layout of a global tensor. mesh: its ranks.  placements: along the axes of these."""

    mesh: DeviceMesh
    placements: AxisPlacements


def _spec_of(x: Tensor) -> Spec:
    return Spec(_mesh_of(x), _placements(x))


def _local_of(x: Tensor) -> Tensor:
    return as_local(x).detach()


local_tensor = property(_local_of, doc="This rank's part of a global tensor, in its memory.")
spec = property(_spec_of, doc="The layout of a global tensor.")
device_mesh = property(_mesh_of, doc="The ranks of a global tensor, as a mesh.")
placements = property(_placements, doc="How a global tensor lies along the axes of its mesh.")
