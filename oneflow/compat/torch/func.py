"""`torch.func`: gradients as functions of functions, over `flow.autograd`.

Each can be differentiated again, and called inside `vmap` (vmap.py). All are made of backward
passes: a derivative along a vector is the gradient of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

from oneflow import surfaces
from oneflow.autograd.api import grad as gradients
from oneflow.compat.torch.pytree import TreeSpec, tree_flatten, tree_unflatten
from oneflow.compat.torch.vmap import vmap
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import ArgumentError, CallError
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
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]

Numbers = int | tuple[int, ...]


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
    """Return the parameters, and the buffers, of several modules, stacked by name.

    Raises:
        ArgumentError: For no module, modules of several classes, and modules of which some train.
    """
    if not models:
        raise ArgumentError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1 or len({type(m) for m in models}) > 1:
        raise ArgumentError(
            "stack_module_state: Expected all models to be of the same class and to have the same "
            "training/eval mode."
        )
    stack = surfaces.find("flow", "stack")

    def stacked(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: stack([one[name].detach() for one in found]).requires_grad_(x.requires_grad)
            for name, x in found[0].items()
        }

    return stacked([dict(m.named_parameters()) for m in models]), stacked(
        [dict(m.named_buffers()) for m in models]
    )


class _Taped(NamedTuple):
    """A function that was called, recorded.

    leaves: the tensors it may be differentiated by, as it was called with them.  specs: the shapes
    of the trees that they are of.  made: all that it returned.  outputs: without the auxiliary
    result.
    is_nested: whether more than the leaves may ask for gradients: those of an outer function.
    """

    leaves: list[Tensor]
    specs: list[TreeSpec]
    made: Any
    outputs: Any
    is_nested: bool

    def flat(self) -> tuple[list[Tensor], TreeSpec]:
        """Return the outputs as a list and the shape of their tree."""
        found, spec = tree_flatten(self.outputs)
        for y in found:
            if not isinstance(y, Tensor):
                raise CallError(
                    f"Expected f(*args) to return only tensors, got type {type(y).__name__}"
                )
        return found, spec

    def kept(self, tree: object) -> Any:
        """Return the tree, without a history unless an outer function differentiates it."""
        leaves, spec = tree_flatten(tree)
        if self.is_nested:
            return tree
        return tree_unflatten([x.detach() if isinstance(x, Tensor) else x for x in leaves], spec)

    def as_arguments(self, found: Sequence[Any]) -> list[Any]:
        """Return the entry of each leaf in the trees that the leaves are of."""
        trees, start = [], 0
        for spec in self.specs:
            trees.append(tree_unflatten(found[start : start + spec.num_leaves], spec))
            start += spec.num_leaves
        return trees


def _called(
    func: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    argnums: Iterable[int],
    has_aux: bool,
) -> _Taped:
    """Call a function and record its results by the arguments of these numbers."""
    given, leaves, specs = list(args), list[Tensor](), []
    for number in argnums:
        if not -len(given) <= number < len(given):
            raise ArgumentError(
                f"Got argnum={number}, but only {len(given)} positional inputs; it must be less"
            )
        found, spec = tree_flatten(args[number])
        fresh = [_watched(_tensor(x)) for x in found]
        given[number] = tree_unflatten(fresh, spec)
        leaves += fresh
        specs.append(spec)
    is_nested = _is_differentiated((args, kwargs))
    made = func(*given, **kwargs)
    if has_aux and not (isinstance(made, tuple) and len(made) == 2):
        raise ArgumentError(
            "the function must return a tuple (output, aux) if has_aux is True, got "
            f"{type(made).__name__}"
        )
    outputs = made[0] if has_aux else made
    is_nested = is_nested or _reaches_others(tree_flatten(outputs)[0], leaves)
    return _Taped(leaves, specs, made, outputs, is_nested)


def _watched(x: Tensor) -> Tensor:
    """Return a tensor that requires a gradient, and through which outer gradients still go."""
    if not (x.is_floating_point() or x.is_complex()):
        return x
    enter = current_mode().enter
    if enter is not None:
        x = enter(x)
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"only tensors can be differentiated by; argnums name a {type(value).__name__}"
        )
    return value


def _is_differentiated(tree: object) -> bool:
    return any(x.requires_grad for x in tree_flatten(tree)[0] if isinstance(x, Tensor))


def _reaches_others(outputs: Iterable[object], leaves: Sequence[Tensor]) -> bool:
    """Whether outputs were computed from tensors that require gradients beside the leaves."""
    known = {id(x) for x in leaves}
    edges: list[Any] = []
    for y in outputs:
        if isinstance(y, Tensor) and y.requires_grad:
            edges.append((y, -1) if y.grad_fn is None else (y.grad_fn, 0))
    seen = set()
    while edges:
        edge = edges.pop()
        if edge is None:
            continue
        target, index = edge
        if index < 0:
            if id(target) not in known:
                return True
        elif target not in seen:
            if not target.edges:  # a tensor from outside of vmap
                return True
            seen.add(target)
            edges += target.edges
    return False


def _or_zeros(found: Iterable[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    zeros = surfaces.find("flow", "zeros_like")
    return [zeros(x) if g is None else g for g, x in zip(found, like, strict=True)]


def _slopes(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    vectors: Sequence[Tensor] | None,
    **options: bool,
) -> list[Tensor | None]:
    """The gradients of the outputs that have any, weighted by the vectors."""
    wanted = [i for i, y in enumerate(outputs) if y.requires_grad]
    watched = [x for x in leaves if x.requires_grad]
    if not wanted or not watched:
        return [None] * len(leaves)
    weights = None if vectors is None else [vectors[i] for i in wanted]
    found = iter(
        gradients([outputs[i] for i in wanted], watched, weights, allow_unused=True, **options)
    )
    return [next(found) if x.requires_grad else None for x in leaves]


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
            taped = _called(func, args, kwargs, numbers, has_aux)
            value = taped.outputs
            if not isinstance(value, Tensor) or value.ndim:
                got = f"{value.ndim} dims" if isinstance(value, Tensor) else type(value).__name__
                raise ArgumentError(
                    "grad: the function must return a tensor of one number (Expected f(*args) to "
                    f"return a scalar tensor, got {got}); vjp and jacrev take others"
                )
            found = _slopes([value], taped.leaves, None, create_graph=taped.is_nested)
            slopes = taped.as_arguments(_or_zeros(found, taped.leaves))
        out = slopes[0] if isinstance(argnums, int) else tuple(slopes)
        return taped.kept(out), taped.kept(taped.made)

    return apply


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
        taped = _called(func, primals, {}, range(len(primals)), has_aux)
    found, shape = taped.flat()

    def pull(*cotangents: object, **_: object) -> Any:
        values, given = tree_flatten(cotangents if len(cotangents) > 1 else cotangents[0])
        if given != shape:
            raise ArgumentError("vjp: the vectors must be a tree like the outputs")
        is_nested = taped.is_nested or _is_differentiated(values)
        slopes = _slopes(found, taped.leaves, values, retain_graph=True, create_graph=is_nested)
        return tuple(taped.as_arguments(_or_zeros(slopes, taped.leaves)))

    outputs = taped.kept(taped.outputs)
    return (outputs, pull, taped.kept(taped.made[1])) if has_aux else (outputs, pull)


def _along(
    taped: _Taped, found: Sequence[Tensor], shape: TreeSpec
) -> Callable[[Sequence[Tensor]], Any]:
    """Return the function from tangents of the leaves to those of the outputs: v^T J is linear in
    v, and its gradient by v along t is J t.
    """
    zeros = surfaces.find("flow", "zeros_like")
    with enable_grad():
        vectors = [_watched(zeros(y)) for y in found]
        slopes = _slopes(found, taped.leaves, vectors, retain_graph=True, create_graph=True)

    def push(tangents: Sequence[Tensor]) -> Any:
        is_nested = taped.is_nested or _is_differentiated(tangents)
        pairs = [(s, t) for s, t in zip(slopes, tangents, strict=True) if s is not None]
        outs, weights = [s for s, _ in pairs], [t for _, t in pairs]
        with enable_grad():
            made = _slopes(outs, vectors, weights, retain_graph=True, create_graph=is_nested)
        return tree_unflatten(_or_zeros(made, found), shape)

    return push


def _tangents(who: str, leaves: Sequence[Tensor], tree: object, given: TreeSpec) -> list[Tensor]:
    found, spec = tree_flatten(tree)
    if spec != given:
        raise ArgumentError(f"{who}: the tangents must be a tree like the primals")
    for x, t in zip(leaves, found, strict=True):
        if not isinstance(t, Tensor) or t.shape != x.shape:
            got = t.meta if isinstance(t, Tensor) else type(t).__name__
            raise ArgumentError(f"{who}: the tangent of {x.meta} must have its shape, got {got}")
    return found


def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Return (func(*primals), J tangents); with has_aux its auxiliary result, too."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise ArgumentError("jvp: Expected primals and tangents to be tuples")
    with enable_grad():
        taped = _called(func, primals, {}, range(len(primals)), has_aux)
    found, shape = taped.flat()
    wanted = _tangents("jvp", taped.leaves, tangents, tree_flatten(primals)[1])
    products = _along(taped, found, shape)(wanted)
    more = (taped.kept(taped.made[1]),) if has_aux else ()
    return taped.kept(taped.outputs), products, *more


def linearize(func: Callable[..., Any], *primals: object) -> tuple[Any, Callable[..., Any]]:
    """Return (func(*primals), a function from tangents to J tangents), which does not call `func`
    again.
    """
    with enable_grad():
        taped = _called(func, primals, {}, range(len(primals)), False)
    found, shape = taped.flat()
    push, given = _along(taped, found, shape), tree_flatten(primals)[1]

    def along(*tangents: object) -> Any:
        return push(_tangents("linearize", taped.leaves, tangents, given))

    return taped.kept(taped.outputs), along


def jacrev(
    func: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that gives the Jacobian of `func`: of shape output + input for a tensor of
    a tensor, and a tree of them for a tree of trees.

    One backward pass computes the gradients of all elements of an output.  chunk_size: of at most
    that many (default: all).
    """
    numbers = (argnums,) if isinstance(argnums, int) else argnums

    @wraps(func)
    def apply(*args: object, **kwargs: object) -> Any:
        with enable_grad():
            taped = _called(func, args, kwargs, numbers, has_aux)
            found, shape = taped.flat()
            rows = []
            for y in found:
                trees = taped.as_arguments(_jacobians(y, taped, chunk_size))
                rows.append(trees[0] if isinstance(argnums, int) else tuple(trees))
        out = taped.kept(tree_unflatten(rows, shape))
        return (out, taped.kept(taped.made[1])) if has_aux else out

    return apply


def _jacobians(y: Tensor, taped: _Taped, chunk_size: int | None) -> list[Tensor]:
    """The Jacobians of one output by each leaf."""
    size = y.numel()
    eye = surfaces.find("flow", "eye")(size, dtype=y.dtype, device=y.device)
    parts = []
    for start in range(0, size, chunk_size or max(size, 1)):
        rows = eye[start : start + (chunk_size or size)]
        vectors = [rows.reshape(len(rows), *y.shape)]
        found = _slopes(
            [y],
            taped.leaves,
            vectors,
            retain_graph=True,
            create_graph=taped.is_nested,
            is_grads_batched=True,
        )
        parts.append(found)
    join, zeros = surfaces.find("flow", "cat"), surfaces.find("flow", "zeros_like")
    made = []
    for k, x in enumerate(taped.leaves):
        column = [part[k] for part in parts if part[k] is not None]
        whole = join(column) if column else zeros(x).expand(size, *x.shape)
        made.append(whole.reshape(*y.shape, *x.shape))
    return made


def jacfwd(
    func: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return the Jacobian as `jacrev` does: the values of forward mode, computed by backward
    passes. So a function with many more outputs than inputs takes longer than in PyTorch.

    randomness: accepted; the function itself is called once, outside of `vmap`.
    """
    return jacrev(func, argnums, has_aux)


def hessian(func: Callable[..., Any], argnums: Numbers = 0) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of `func`."""
    return jacfwd(jacrev(func, argnums), argnums)
