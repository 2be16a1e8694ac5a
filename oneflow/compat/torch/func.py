"""`torch.func`: gradients as functions of functions, over `flow.autograd`.

Each can be differentiated again. `vmap` calls the function for one row after the other, and says so
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from oneflow import surfaces
from oneflow.autograd import functional
from oneflow.autograd.api import grad as gradients
from oneflow.compat.torch.pytree import TreeSpec, tree_flatten, tree_unflatten
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.no_effect import without_effect
from oneflow.nn.module import Module
from oneflow.nn.utils import stateless
from oneflow.tensor.grad_mode import enable_grad
from oneflow.tensor.tensor import Tensor

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]

Numbers = int | tuple[int, ...]
InDims = int | Sequence[object]
"""The dim of a batch in all arguments, or for each argument a dim, None or a tree of them."""


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: object = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with other parameters and buffers, of one dict or of several."""
    given = parameter_and_buffer_dicts
    dicts = [given] if isinstance(given, Mapping) else given
    whole = {name: x for one in dicts for name, x in one.items()}
    return stateless.functional_call(
        module, whole, args, kwargs, tie_weights=tie_weights, strict=strict
    )


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters, and the buffers, of several modules, stacked by name."""
    stack = surfaces.find("flow", "stack")

    def stacked(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: stack([one[name].detach() for one in found]).requires_grad_(x.requires_grad)
            for name, x in found[0].items()
        }

    return stacked([dict(m.named_parameters()) for m in models]), stacked(
        [dict(m.named_buffers()) for m in models]
    )


def _fresh(tree: object) -> tuple[list[Any], TreeSpec]:
    """Return the leaves, tensors as parts of a history of their own, and the shape of the tree."""
    leaves, spec = tree_flatten(tree)
    return [_watched(x) if isinstance(x, Tensor) else x for x in leaves], spec


def _watched(x: Tensor) -> Tensor:
    """Return a tensor that requires a gradient, and through which outer gradients still go."""
    if not x.is_floating_point():
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def grad_and_value(
    func: Callable[..., Any], argnums: Numbers = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives (gradients, value) of `func`, whose result is one number.

    argnums: the arguments by which to differentiate.  has_aux: `func` gives (number, more), and the
    function (gradients, (number, more)).
    """
    numbers = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        with enable_grad():
            given = list(args)
            leaves: list[Tensor] = []
            specs = []
            for number in numbers:
                found, spec = _fresh(args[number])
                given[number] = tree_unflatten(found, spec)
                specs.append(spec)
                leaves += found
            result = func(*given, **kwargs)
            value = result[0] if has_aux else result
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ArgumentError("grad: the function must return a tensor of one number")
            made: Iterable[Tensor | None] = [None] * len(leaves)
            if value.requires_grad:
                made = gradients(value, leaves, create_graph=True, allow_unused=True)
            found = _or_zeros(made, leaves)
        slopes = []
        for spec in specs:
            slopes.append(tree_unflatten(found[: spec.num_leaves], spec))
            found = found[spec.num_leaves :]
        nested = any(x.requires_grad for x in tree_flatten(args)[0] if isinstance(x, Tensor))
        out = slopes[0] if isinstance(argnums, int) else tuple(slopes)
        return _kept(out, nested), _kept(result, nested)

    return apply


def _or_zeros(found: Iterable[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [x * 0 if g is None else g for g, x in zip(found, like, strict=True)]


def _kept(tree: object, nested: bool) -> Any:
    """Return the tree, without a history unless an outer function differentiates it."""
    leaves, spec = tree_flatten(tree)
    if nested:
        return tree
    return tree_unflatten([x.detach() if isinstance(x, Tensor) else x for x in leaves], spec)


def grad(
    func: Callable[..., Any], argnums: Numbers = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the gradients of `func`, whose result is one number."""
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        slopes, value = both(*args, **kwargs)
        return (slopes, value[1]) if has_aux else slopes

    return apply


def vjp(func: Callable[..., Any], *primals: object, has_aux: bool = False) -> tuple[Any, ...]:
    """Return (func(*primals), a function from v to v^T J); with has_aux the auxiliary result of
    `func`, too.
    """
    with enable_grad():
        leaves, spec = _fresh(primals)
        result = func(*tree_unflatten(leaves, spec))
    outputs = result[0] if has_aux else result
    found, shape = tree_flatten(outputs)

    def pull(*cotangents: object, **_: object) -> Any:
        values, given = tree_flatten(cotangents if len(cotangents) > 1 else cotangents[0])
        if given != shape:
            raise ArgumentError("vjp: the vectors must be a tree like the outputs")
        slopes = gradients(
            found, leaves, values, retain_graph=True, create_graph=True, allow_unused=True
        )
        return tree_unflatten(_or_zeros(slopes, leaves), spec)

    return (outputs, pull, result[1]) if has_aux else (outputs, pull)


def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Return (func(*primals), J tangents); with has_aux its auxiliary result, too."""
    more: list[Any] = []

    def alone(*args: Tensor) -> Any:
        result = func(*args)
        more[:] = [result[1]] if has_aux else []
        return result[0] if has_aux else result

    values, products = functional.jvp(alone, primals, tangents)
    return values, products, *more


def jacrev(
    func: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that gives the Jacobian of `func`, whose result is a tensor: of shape
    output + input, or a tuple of them for several arguments.
    """
    numbers = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        with enable_grad():
            given = list(args)
            leaves = [_watched(_tensor(args[number])) for number in numbers]
            for number, x in zip(numbers, leaves, strict=True):
                given[number] = x
            result = func(*given, **kwargs)
            y = result[0] if has_aux else result
            rows = [
                _or_zeros(
                    gradients(one, leaves, create_graph=True, retain_graph=True, allow_unused=True)
                    if one.requires_grad
                    else [None] * len(leaves),
                    leaves,
                )
                for one in y.reshape(-1).unbind()
            ]
            stack = surfaces.find("flow", "stack")
            found = [
                stack([row[k] for row in rows]).reshape(*y.shape, *x.shape)
                for k, x in enumerate(leaves)
            ]
        nested = any(x.requires_grad for x in tree_flatten(args)[0] if isinstance(x, Tensor))
        out = _kept(found[0] if isinstance(argnums, int) else tuple(found), nested)
        return (out, result[1]) if has_aux else out

    return apply


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ArgumentError(f"jacrev: argnums must name tensors, got {type(value).__name__}")
    return value


jacfwd = jacrev


def hessian(func: Callable[..., Any], argnums: Numbers = 0) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of `func`."""
    return jacrev(jacrev(func, argnums), argnums)


def vmap(
    func: Callable[..., Any],
    in_dims: InDims = 0,
    out_dims: int | Sequence[int] = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function of batches: `func` of one row after the other, and the results stacked.

    in_dims: the dim of the batch in each argument, or in each tensor of it; None for arguments that
    all rows share.  out_dims: the dim of the batch in the results.  randomness, chunk_size:
    accepted; each row draws numbers of its own.
    """

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        without_effect("vmap", "rows are computed one after the other; use ops that broadcast")
        leaves, spec = tree_flatten(args)
        dims = _spread(in_dims, args)
        sizes = {int(x.shape[d]) for x, d in zip(leaves, dims, strict=True) if d is not None}
        if len(sizes) != 1:
            raise ShapeError(f"vmap: batches must be as long in all arguments, got {sorted(sizes)}")
        named, names = tree_flatten(kwargs)
        results = [
            func(
                *tree_unflatten(
                    [
                        x if d is None else x.select(d, row)
                        for x, d in zip(leaves, dims, strict=True)
                    ],
                    spec,
                ),
                **tree_unflatten(
                    [x.select(0, row) if isinstance(x, Tensor) else x for x in named], names
                ),
            )
            for row in range(sizes.pop())
        ]
        _, shape = tree_flatten(results[0])
        columns = zip(*(tree_flatten(one)[0] for one in results), strict=True)
        ends = [out_dims] * shape.num_leaves if isinstance(out_dims, int) else list(out_dims)
        stack = surfaces.find("flow", "stack")
        return tree_unflatten([stack(c, d) for c, d in zip(columns, ends, strict=True)], shape)

    return apply


def _spread(in_dims: InDims, args: tuple[object, ...]) -> list[int | None]:
    """Return the dim of the batch for every leaf; numbers and texts have none."""
    each = [in_dims] * len(args) if isinstance(in_dims, int) else list(in_dims)
    if len(each) != len(args):
        raise ArgumentError(f"vmap: in_dims has {len(each)} entries for {len(args)} arguments")
    found: list[int | None] = []
    for dim, arg in zip(each, args, strict=True):
        leaves, spec = tree_flatten(arg)
        own = [dim] * spec.num_leaves if dim is None or isinstance(dim, int) else _leaves_of(dim)
        found += [d if isinstance(x, Tensor) else None for x, d in zip(leaves, own, strict=True)]
    return found


def _leaves_of(dims: object) -> list[Any]:
    return tree_flatten(dims, lambda x: x is None)[0]
