"""Nested lists, tuples and dicts as leaves and a shape: `torch.utils._pytree`."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, cast

from oneflow.core.size import Size

Context: TypeAlias = object
PyTree: TypeAlias = object
FlattenFunc: TypeAlias = "Callable[[Any], tuple[Iterable[Any], Any]]"
UnflattenFunc: TypeAlias = "Callable[[Iterable[Any], Any], Any]"


class NodeDef(NamedTuple):
    """Functions that take a container apart into (parts, context) and build it again from these.

    keys: a function that gives the place of each part, by which `tree_flatten_with_path` names it.
    """

    type: Any
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten_fn: Callable[[Any, Any], Any]
    keys: Callable[[Any], Iterable[Any]] | None = None


@dataclass(frozen=True)
class TreeSpec:
    """The shape of a tree.  type: class of the container, None for a leaf."""

    type: Any
    context: Any
    children_specs: Sequence[TreeSpec]

    @property
    def num_leaves(self) -> int:
        return 1 if self.is_leaf() else sum(c.num_leaves for c in self.children_specs)

    @property
    def num_nodes(self) -> int:
        return 1 + sum(c.num_nodes for c in self.children_specs)

    @property
    def num_children(self) -> int:
        return len(self.children_specs)

    def is_leaf(self) -> bool:
        """Return whether the shape is that of one leaf."""
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return the tree of this shape with these leaves."""
        return tree_unflatten(leaves, self)

    def flatten_up_to(self, tree: object) -> list[Any]:
        """Return the parts of a tree that stand at the leaves of this shape, which may be trees.

        Dicts may have their keys in another order. Raises ValueError for a tree of another shape.
        """
        if self.is_leaf():
            return [tree]
        kind = _get_node_type(tree)
        are_dicts = self.type in _DICTS and kind in _DICTS
        if kind != self.type and not are_dicts:
            raise ValueError(f"Node type mismatch: expected {self.type!r}, got {kind!r}")
        if are_dicts:
            names = self.context[1] if self.type is defaultdict else self.context
            given = cast("dict[Any, Any]", tree)
            if given.keys() != set(names):
                raise ValueError(f"Node keys mismatch: expected {list(names)}, got {list(given)}")
            parts = [given[name] for name in names]
        else:
            made, context = SUPPORTED_NODES[kind].flatten_fn(tree)
            parts = list(made)
            if len(parts) != self.num_children:
                raise ValueError(
                    f"Node arity mismatch: expected {self.num_children}, got {len(parts)}"
                )
            if kind is not deque and context != self.context:
                raise ValueError(f"Node context mismatch: expected {self.context}, got {context}")
        pairs = zip(self.children_specs, parts, strict=True)
        return [found for spec, part in pairs for found in spec.flatten_up_to(part)]


class LeafSpec(TreeSpec):
    """The shape of one leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, ())


@dataclass(frozen=True)
class SequenceKey:
    """A place in a sequence."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Sequence[Any]) -> Any:
        """Return the value at this key."""
        return sequence[self.idx]


@dataclass(frozen=True)
class MappingKey:
    """A place in a mapping."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Mapping[Any, Any]) -> Any:
        """Return the value at this key."""
        return mapping[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """A field of a record."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: object) -> Any:
        """Return the value at this key."""
        return getattr(obj, self.name)


Kind: TypeAlias = type | tuple[type, ...] | UnionType | Callable[[Any], object]
"""The leaves that a function is for: a class, several, or a function that says so."""
KeyPath: TypeAlias = "tuple[SequenceKey | MappingKey | GetAttrKey, ...]"


def _list_flatten(d: Iterable[object]) -> tuple[list[Any], Any]:
    return list(d), None


def _list_unflatten(values: Iterable[Any], context: object) -> list[Any]:
    return list(values)


def _tuple_unflatten(values: Iterable[Any], context: object) -> tuple[Any, ...]:
    return tuple(values)


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: Iterable[Any]) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _ordered_unflatten(values: Iterable[Any], context: Iterable[Any]) -> OrderedDict[Any, Any]:
    return OrderedDict(zip(context, values, strict=True))


def _default_flatten(d: defaultdict[Any, Any]) -> tuple[list[Any], Any]:
    return list(d.values()), (d.default_factory, list(d))


def _default_unflatten(
    values: Iterable[Any], context: tuple[Callable[[], Any] | None, list[Any]]
) -> defaultdict[Any, Any]:
    factory, keys = context
    return defaultdict(factory, zip(keys, values, strict=True))


def _named_flatten(d: tuple[Any, ...]) -> tuple[list[Any], Any]:
    return list(d), type(d)


def _named_unflatten(values: Iterable[Any], context: Callable[..., Any]) -> Any:
    return context(*values)


def _deque_flatten(d: deque[Any]) -> tuple[list[Any], Any]:
    return list(d), d.maxlen


def _deque_unflatten(values: Iterable[Any], context: int | None) -> deque[Any]:
    return deque(values, context)


def _places(d: Sequence[Any]) -> list[SequenceKey]:
    return [SequenceKey(i) for i in range(len(d))]


def _keys(d: dict[Any, Any]) -> list[MappingKey]:
    return [MappingKey(key) for key in d]


def _fields(d: object) -> list[GetAttrKey]:
    return [GetAttrKey(name) for name in getattr(d, "_fields", ())]


def _list_flatten_with_keys(d: Sequence[Any]) -> tuple[list[Any], Any]:
    return list(zip(_places(d), d, strict=True)), None


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[Any], Any]:
    return list(zip(_keys(d), d.values(), strict=True)), list(d)


_DICTS = (dict, OrderedDict, defaultdict)

SUPPORTED_NODES: dict[Any, NodeDef] = {
    node.type: node
    for node in (
        NodeDef(tuple, _list_flatten, _tuple_unflatten, _places),
        NodeDef(list, _list_flatten, _list_unflatten, _places),
        NodeDef(dict, _dict_flatten, _dict_unflatten, _keys),
        NodeDef(namedtuple, _named_flatten, _named_unflatten, _fields),
        NodeDef(OrderedDict, _dict_flatten, _ordered_unflatten, _keys),
        NodeDef(defaultdict, _default_flatten, _default_unflatten, _keys),
        NodeDef(deque, _deque_flatten, _deque_unflatten, _places),
        NodeDef(Size, _list_flatten, _tuple_unflatten, _places),
    )
}


def register_pytree_node(
    cls: object,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_fn: Callable[[Any, Any], Any],
    *,
    flatten_with_keys_fn: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
    **_: object,
) -> None:
    """Let trees go through the containers of a class."""
    keys = None
    if flatten_with_keys_fn is not None:
        with_keys = flatten_with_keys_fn

        def keys(value: object) -> list[Any]:
            return [key for key, _ in with_keys(value)[0]]

    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, keys)


_register_pytree_node = register_pytree_node


def is_namedtuple(obj: object) -> bool:
    """Return whether a value, or a class, is a named tuple."""
    kind = obj if isinstance(obj, type) else type(obj)
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


is_namedtuple_class = is_namedtuple_instance = _is_namedtuple_instance = is_namedtuple


def is_structseq_instance(obj: object) -> bool:
    """Return whether a value is a sequence with names of the system's, such as `os.stat_result`."""
    kind = type(obj)
    return issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields")


def _get_node_type(tree: object) -> Any:
    """Return the key of a value in SUPPORTED_NODES, if it has one."""
    return namedtuple if is_namedtuple(tree) and type(tree) not in SUPPORTED_NODES else type(tree)


def _is_leaf(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    return (is_leaf is not None and is_leaf(tree)) or _get_node_type(tree) not in SUPPORTED_NODES


tree_is_leaf = _is_leaf


def tree_flatten(
    tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeSpec]:
    """Return the leaves from left to right, and the shape from which `tree_unflatten` builds the
    tree again.
    """
    if _is_leaf(tree, is_leaf):
        return [tree], LeafSpec()
    kind = _get_node_type(tree)
    parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    flat = [tree_flatten(part, is_leaf) for part in parts]
    spec = TreeSpec(kind, context, tuple(shape for _, shape in flat))
    return [leaf for leaves, _ in flat for leaf in leaves], spec


def tree_flatten_with_path(
    tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """Return (path, leaf) from left to right, and the shape."""
    return list(_with_paths(tree, is_leaf, ())), tree_structure(tree, is_leaf)


def _with_paths(
    tree: object, is_leaf: Callable[[Any], bool] | None, path: KeyPath
) -> Iterable[tuple[Any, Any]]:
    if _is_leaf(tree, is_leaf):
        yield path, tree
        return
    node = SUPPORTED_NODES[_get_node_type(tree)]
    if node.keys is None:
        raise ValueError(
            f"tree_flatten_with_path: {node.type} was registered without flatten_with_keys_fn"
        )
    for key, part in zip(node.keys(tree), node.flatten_fn(tree)[0], strict=True):
        yield from _with_paths(part, is_leaf, (*path, key))


def tree_map_with_path(
    func: Callable[..., Any],
    tree: object,
    *rests: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the tree with func(path, leaf, parts of the other trees) in place of each leaf."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    columns = map(spec.flatten_up_to, rests)
    rows = zip(found, *columns, strict=True)
    return tree_unflatten([func(*pair, *more) for pair, *more in rows], spec)


def keystr(kp: KeyPath) -> str:
    """Return a path as text: `['a'][0].x`."""
    return "".join(map(str, kp))


def key_get(obj: object, kp: KeyPath) -> Any:
    """Return the value at the end of a path."""
    found: Any = obj
    for key in kp:
        found = key.get(found)
    return found


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Return the tree of that shape with these leaves."""
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ValueError(f"tree_unflatten: {len(given)} leaves for {treespec.num_leaves} places")
    return _build(iter(given), treespec)


def _build(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return next(leaves)
    parts = [_build(leaves, child) for child in spec.children_specs]
    return SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def tree_leaves(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves from left to right."""
    return tree_flatten(tree, is_leaf)[0]


tree_iter = tree_leaves


def tree_structure(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """Return the shape of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(
    func: Callable[..., Any],
    tree: object,
    *rests: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the tree with func(leaf, parts of the other trees at its place) in place of each
    leaf.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    columns: Sequence[list[Any]] = [leaves, *map(spec.flatten_up_to, rests)]
    return tree_unflatten([func(*row) for row in zip(*columns, strict=True)], spec)


def tree_map_(
    func: Callable[..., Any],
    tree: object,
    *rests: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Call func(leaf, ...) for each leaf, and return the tree itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _chosen(kind: Kind) -> Callable[[Any], bool]:
    if isinstance(kind, type | tuple | UnionType):
        return lambda leaf: isinstance(leaf, kind)
    return lambda leaf: bool(kind(leaf))


def tree_map_only(
    kind: Kind,
    func: Callable[[Any], Any],
    tree: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the tree with func(leaf) in place of the leaves of a class."""
    is_chosen = _chosen(kind)
    return tree_map(lambda leaf: func(leaf) if is_chosen(leaf) else leaf, tree, is_leaf=is_leaf)


def tree_all(
    pred: Callable[[Any], bool], tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> bool:
    """Return whether pred(leaf) holds for all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(
    pred: Callable[[Any], bool], tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> bool:
    """Return whether pred(leaf) holds for any leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(
    kind: Kind,
    pred: Callable[[Any], bool],
    tree: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> bool:
    """Return whether pred(leaf) holds for all leaves of a class."""
    is_chosen = _chosen(kind)
    return all(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if is_chosen(leaf))


def tree_any_only(
    kind: Kind,
    pred: Callable[[Any], bool],
    tree: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> bool:
    """Return whether pred(leaf) holds for any leaf of a class."""
    is_chosen = _chosen(kind)
    return any(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if is_chosen(leaf))


def _broadcast_to_and_flatten(
    tree: object, treespec: TreeSpec, is_leaf: Callable[[Any], bool] | None = None
) -> list[Any] | None:
    """Return the leaves of a tree of which one may stand for a whole part; None if it does not
    fit.
    """
    if _is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.is_leaf() or _get_node_type(tree) != treespec.type:
        return None
    parts, context = SUPPORTED_NODES[treespec.type].flatten_fn(tree)
    listed = list(parts)
    if len(listed) != treespec.num_children or context != treespec.context:
        return None
    found: list[Any] = []
    for part, spec in zip(listed, treespec.children_specs, strict=True):
        leaves = _broadcast_to_and_flatten(part, spec, is_leaf)
        if leaves is None:
            return None
        found += leaves
    return found


_NAMES = {"builtins.tuple": tuple, "builtins.list": list, "builtins.dict": dict}
_NAMES["collections.OrderedDict"] = OrderedDict


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """Return the shape of tuples, lists and dicts as JSON, as PyTorch writes it."""
    return json.dumps([protocol or 1, _as_json(treespec)])


def _as_json(spec: TreeSpec) -> dict[str, Any]:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    name = next((name for name, kind in _NAMES.items() if kind is spec.type), None)
    if name is None:
        raise NotImplementedError(f"treespec_dumps: {spec.type} has no name in a file")
    children = [_as_json(child) for child in spec.children_specs]
    return {"type": name, "context": json.dumps(spec.context), "children_spec": children}


def treespec_loads(serialized: str) -> TreeSpec:
    """Return the shape that `treespec_dumps` wrote."""
    _, found = json.loads(serialized)
    return _from_json(found)


def _from_json(found: dict[str, Any]) -> TreeSpec:
    if found["type"] is None:
        return LeafSpec()
    children = tuple(_from_json(child) for child in found["children_spec"])
    return TreeSpec(_NAMES[found["type"]], json.loads(found["context"]), children)


def treespec_pprint(treespec: TreeSpec) -> str:
    """Return the shape as text, leaves as `*`."""
    return repr(tree_unflatten(["*"] * treespec.num_leaves, treespec)).replace("'*'", "*")
