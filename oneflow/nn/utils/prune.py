"""Pruning: parameters of which some elements are held at zero by a mask.

A pruned parameter `weight` is the product of the parameter `weight_orig` and the buffer
`weight_mask`, made anew at each call of its module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from oneflow.functional.concat_split import cat, narrow
from oneflow.functional.creation import ones_like, rand, zeros_like
from oneflow.functional.from_data import tensor
from oneflow.functional.gather_scatter import scatter
from oneflow.functional.linalg.norms import vector_norm
from oneflow.functional.random_state import default_generator
from oneflow.functional.shaping import expand, reshape
from oneflow.functional.sort_and_search import topk
from oneflow.nn.module import Module
from oneflow.ops.unary import abs as absolute
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]

M = TypeVar("M", bound=Module)
Amount = int | float


class BasePruningMethod(ABC):
    """A way to choose the elements to prune: subclasses define `compute_mask` and PRUNING_TYPE.

    PRUNING_TYPE: "unstructured" (single elements of those that are left), "structured" (whole
    slices along `dim` of those that are left) or "global" (of all elements).
    """

    PRUNING_TYPE = "unstructured"
    _tensor_name: str = ""

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask after pruning; t: importance of each element; default_mask: the one before."""

    def __call__(self, module: Module, inputs: object) -> None:
        object.__setattr__(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Module) -> Tensor:
        """The parameter times its mask."""
        mask = getattr(module, f"{self._tensor_name}_mask")
        pruned: Tensor = mask.to(dtype=self._original(module).dtype) * self._original(module)
        return pruned

    def _original(self, module: Module) -> Tensor:
        found: Tensor = getattr(module, f"{self._tensor_name}_orig")
        return found

    def prune(
        self,
        t: Tensor,
        default_mask: Tensor | None = None,
        importance_scores: Tensor | None = None,
    ) -> Tensor:
        """`t` with the elements that this method chooses at zero."""
        scores = t if importance_scores is None else importance_scores
        mask = ones_like(t) if default_mask is None else default_mask
        pruned: Tensor = t * self.compute_mask(scores, mask)
        return pruned

    def remove(self, module: Module) -> None:
        """Make the pruned values the parameter; its hook is removed by `prune.remove`."""
        name = self._tensor_name
        original = module.get_parameter(f"{name}_orig")
        del module._parameters[f"{name}_orig"]
        original.data = self.apply_mask_to(original, module).detach()
        del module._buffers[f"{name}_mask"]
        module.__dict__.pop(name, None)
        module.register_parameter(name, original)

    def apply_mask_to(self, original: Tensor, module: Module) -> Tensor:
        """Another tensor times the parameter's mask."""
        mask = getattr(module, f"{self._tensor_name}_mask")
        pruned: Tensor = mask.to(dtype=original.dtype) * original
        return pruned

    @classmethod
    def apply(
        cls,
        module: M,
        name: str,
        *args: object,
        importance_scores: Tensor | None = None,
        **kwargs: object,
    ) -> BasePruningMethod:
        """Prune a parameter, on top of earlier prunings; return the hook that does it."""
        return _attach(module, name, cls(*args, **kwargs), importance_scores)


def _attach(
    module: Module, name: str, method: BasePruningMethod, scores: Tensor | None
) -> BasePruningMethod:
    method._tensor_name = name
    before = next(
        (
            (number, hook)
            for number, hook in module._forward_pre_hooks.items()
            if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
        ),
        None,
    )
    value: Tensor = getattr(module, name)
    scores = value.detach() if scores is None else scores
    if tuple(scores.shape) != tuple(value.shape):
        raise ValueError(
            f"importance_scores have shape {tuple(scores.shape)}, the parameter {name} "
            f"{tuple(value.shape)}"
        )
    hook = method
    # The mask is made first: a method that fails leaves the module as it was.
    if before is None:
        original = module.get_parameter(name)
        mask = method.compute_mask(scores, ones_like(original.detach()))
        del module._parameters[name]
        module.register_parameter(f"{name}_orig", original)
        module.register_buffer(f"{name}_mask", mask)
    else:
        hook = PruningContainer(before[1])
        hook.add_pruning_method(method)
        mask = hook.compute_mask(scores, getattr(module, f"{name}_mask"))
        del module._forward_pre_hooks[before[0]]
        module._buffers[f"{name}_mask"] = mask
    module.register_forward_pre_hook(hook)
    hook(module, ())
    return hook


class PruningContainer(BasePruningMethod):
    """Several prunings of one parameter, each of the elements that the ones before it have left."""

    PRUNING_TYPE = "global"

    def __init__(self, *args: BasePruningMethod) -> None:
        methods = [m for a in args for m in (a if isinstance(a, PruningContainer) else (a,))]
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        self._tensor_name = methods[0]._tensor_name if methods else ""
        for method in methods:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add one, of the same parameter. Raises TypeError, ValueError."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method._tensor_name != self._tensor_name:
            raise ValueError(
                "Can only add pruning methods acting on the parameter named "
                f"'{self._tensor_name}' to PruningContainer {self}; found '{method._tensor_name}'"
            )
        self._pruning_methods = (*self._pruning_methods, method)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the last method, in the dtype of `t`, applied to the rest of
        `default_mask`.
        """
        method = self._pruning_methods[-1]
        default_mask = default_mask.to(dtype=t.dtype)
        if method.PRUNING_TYPE == "global":
            return method.compute_mask(t, default_mask).to(dtype=t.dtype)
        flat = default_mask.detach().cpu().numpy() != 0
        if method.PRUNING_TYPE == "structured":
            dim = getattr(method, "dim", -1) % t.ndim
            others = tuple(d for d in range(t.ndim) if d != dim)
            left = tensor(flat.any(axis=others).nonzero()[0], device=t.device)
            part = t.index_select(dim, left)
            made = method.compute_mask(part, default_mask.index_select(dim, left))
            return _placed(default_mask, made, left, dim)
        left = tensor(flat.reshape(-1).nonzero()[0], device=t.device)
        values = reshape(t, (-1,)).index_select(0, left)
        made = method.compute_mask(values, ones_like(values))
        return reshape(_placed(reshape(default_mask, (-1,)), made, left, 0), tuple(t.shape))


def _placed(mask: Tensor, part: Tensor, places: Tensor, dim: int) -> Tensor:
    """`mask` with `part` at `places` along a dim."""
    index = reshape(places, tuple(-1 if d == dim else 1 for d in range(mask.ndim)))
    part = part.to(dtype=mask.dtype)
    made: Tensor = scatter(mask, dim, expand(index, tuple(part.shape)), part)
    return made


class Identity(BasePruningMethod):
    """Prunes nothing."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _OfAmount(BasePruningMethod):
    """amount: a number of elements (or slices), or a share of them as a float of 0 to 1."""

    def __init__(self, amount: Amount) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        if amount < 0 or (isinstance(amount, float) and amount > 1.0):
            raise ValueError(
                f"amount={amount} should either be a float in the range [0.0, 1.0] or a "
                "non-negative integer"
            )
        self.amount = amount

    def count(self, size: int) -> int:
        """Number of elements to prune of so many. Raises ValueError for more than there are."""
        if isinstance(self.amount, int) and self.amount > size:
            raise ValueError(
                f"amount={self.amount} should be smaller than the number of parameters to prune="
                f"{size}"
            )
        return self.amount if isinstance(self.amount, int) else round(self.amount * size)

    def without_lowest(self, scores: Tensor, mask: Tensor, dim: int | None) -> Tensor:
        """`mask` without the elements, or the slices along `dim`, of the lowest scores."""
        flat = reshape(scores, (-1,))
        count = self.count(flat.meta.numel)
        if not count:
            return mask.clone()
        lowest = topk(flat, count, largest=False)[1]
        if dim is None:
            blank = zeros_like(lowest).to(dtype=mask.dtype)
            return reshape(_placed(reshape(mask, (-1,)), blank, lowest, 0), tuple(mask.shape))
        shape = tuple(count if d == dim else n for d, n in enumerate(mask.shape))
        return _placed(mask, zeros_like(narrow(mask, dim, 0, count)).reshape(shape), lowest, dim)


class RandomUnstructured(_OfAmount):
    """Prunes elements by chance."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        scores = rand(tuple(t.shape), generator=default_generator, **layout_of(t))
        return self.without_lowest(scores, default_mask, None)


class L1Unstructured(_OfAmount):
    """Prunes the elements of the smallest absolute values."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return self.without_lowest(absolute(t), default_mask, None)


class RandomStructured(_OfAmount):
    """Prunes slices along `dim` by chance."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Amount, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        dim = self.dim % t.ndim
        scores = rand((t.shape[dim],), generator=default_generator, **layout_of(t))
        return self.without_lowest(scores, default_mask, dim)


class LnStructured(_OfAmount):
    """Prunes the slices along `dim` of the smallest n-norms. n: as `linalg.vector_norm`'s ord."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Amount, n: float = 2, dim: int = -1) -> None:
        super().__init__(amount)
        self.n, self.dim = n, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        dim = self.dim % t.ndim
        others = tuple(d for d in range(t.ndim) if d != dim)
        return self.without_lowest(vector_norm(t, self.n, others), default_mask, dim)


class CustomFromMask(BasePruningMethod):
    """Prunes where a given mask is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        made: Tensor = default_mask * self.mask.to(dtype=default_mask.dtype)
        return made


def identity(module: M, name: str) -> M:
    """Make a parameter a pruned one of which nothing is pruned."""
    _attach(module, name, Identity(), None)
    return module


def random_unstructured(module: M, name: str, amount: Amount) -> M:
    """Prune elements of a parameter by chance."""
    _attach(module, name, RandomUnstructured(amount), None)
    return module


def l1_unstructured(
    module: M, name: str, amount: Amount, importance_scores: Tensor | None = None
) -> M:
    """Prune the elements of the smallest absolute values."""
    _attach(module, name, L1Unstructured(amount), importance_scores)
    return module


def random_structured(module: M, name: str, amount: Amount, dim: int) -> M:
    """Prune slices along `dim` by chance."""
    _attach(module, name, RandomStructured(amount, dim), None)
    return module


def ln_structured(
    module: M,
    name: str,
    amount: Amount,
    n: float,
    dim: int,
    importance_scores: Tensor | None = None,
) -> M:
    """Prune the slices along `dim` of the smallest n-norms."""
    _attach(module, name, LnStructured(amount, n, dim), importance_scores)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Prune where `mask` is 0."""
    _attach(module, name, CustomFromMask(mask), None)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: object,
) -> None:
    """Prune several parameters as if they were one vector; kwargs: of the method."""
    listed: Sequence[tuple[Module, str]] = list(parameters)
    scored = importance_scores or {}
    scores = [scored.get((m, n), getattr(m, n)).detach() for m, n in listed]
    masks = [_mask_of(m, n) for m, n in listed]
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    whole = PruningContainer(method)
    flat = cat([reshape(s, (-1,)) for s in scores], 0)
    chosen = whole.compute_mask(flat, cat([reshape(m, (-1,)) for m in masks], 0))
    start = 0
    for (module, name), mask in zip(listed, masks, strict=True):
        size = math.prod(mask.shape)
        part = reshape(narrow(chosen, 0, start, size), tuple(mask.shape))
        custom_from_mask(module, name, part)
        start += size


def _mask_of(module: Module, name: str) -> Tensor:
    mask: Tensor | None = module._buffers.get(f"{name}_mask")
    return ones_like(getattr(module, name).detach()) if mask is None else mask


def remove(module: M, name: str) -> M:
    """Make the pruned values the parameter for good. Raises ValueError if it is not pruned."""
    for number, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            hook.remove(module)
            del module._forward_pre_hooks[number]
            return module
    raise ValueError(
        f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
    )


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module or of one of its parts is pruned."""
    return any(
        isinstance(hook, BasePruningMethod)
        for part in module.modules()
        for hook in part._forward_pre_hooks.values()
    )
