"""Arguments as a tree of containers, which clients of `framework.args_tree` walk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from oneflow.graph.tree import record_of

CONTAINERS = (list, tuple, dict, OrderedDict)


def _is_dataclass(value: object) -> bool:
    """Whether a dataclass is a container. Clients put another function in this one's place while
    dataclasses are to be leaves.
    """
    return record_of(value) is not None


def _is_container(value: object) -> bool:
    """Exactly one of these types, a named tuple or a dataclass: other subclasses are leaves."""
    if type(value) in CONTAINERS or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return True
    return _is_dataclass(value)


def _children(value: object) -> list[tuple[str | None, Any]]:
    """(key, member) of a container; the key is None where members have numbers only."""
    if (record := record_of(value)) is not None:
        return list(record.items())
    if isinstance(value, dict):
        return list(value.items())
    return [(None, v) for v in value] if isinstance(value, list | tuple) else []


def _with_members(value: object, members: list[Any]) -> Any:
    """A container like `value` with other members."""
    if (record := record_of(value)) is not None:
        made: Callable[..., Any] = type(value)
        return made(**dict(zip(record, members, strict=True)))
    if isinstance(value, dict):
        return type(value)(zip(value, members, strict=True))
    kind: Callable[..., Any] = type(value)
    return kind(*members) if hasattr(value, "_fields") else kind(members)


class NamedArg:
    """A node of a tree with a name: `prefix()` is its path, `name()` its key or number."""

    def __init__(self, prefix: str = "", name: str | None = None, global_index: int = 0) -> None:
        self._prefix, self._index = prefix, global_index
        self._name = str(global_index) if name is None else name
        self._value: Any = None

    def prefix(self) -> str:
        return self._prefix

    def name(self) -> str:
        return self._name

    def global_index(self) -> int:
        """Number of the node, counted from the root before its members."""
        return self._index

    def value(self) -> Any:
        """The leaf, or a container of NamedArgs."""
        return self._value

    def set_value(self, value: object) -> None:
        if isinstance(value, NamedArg):
            raise TypeError("a NamedArg holds a value or a container of NamedArgs, not a NamedArg")
        self._value = value

    def is_leaf(self) -> bool:
        return not _is_container(self._value)

    def __repr__(self) -> str:
        shown = "" if not self.is_leaf() else f", value: {self._value!r}"
        return f"(name: {self._name}, idx: {self._index}{shown})"


class ArgsTree:
    """A tree of arguments.  gen_name: nodes are NamedArgs, named from `root_prefix` and
    `root_name` on.  tensor_type is accepted; leaves are all but containers.
    """

    def __init__(
        self,
        io_args: object,
        gen_name: bool = False,
        root_prefix: str = "",
        root_name: str | None = None,
        tensor_type: type | None = None,
    ) -> None:
        self._io_args, self._gen_name, self._count = io_args, gen_name, 0
        self._root = self._named(io_args, root_prefix, root_name) if gen_name else io_args

    def gen_name(self) -> bool:
        return self._gen_name

    def _named(self, value: object, prefix: str, name: str | None) -> NamedArg:
        arg = NamedArg(prefix, name, self._count)
        self._count += 1
        if not _is_container(value):
            arg.set_value(value)
            return arg
        dot = "." if prefix else ""
        members = [
            self._named(member, f"{prefix}{dot}{i}", key)
            for i, (key, member) in enumerate(_children(value))
        ]
        arg.set_value(_with_members(value, members))
        return arg

    def iter_nodes(self) -> Iterator[Any]:
        """All nodes, each before its members."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            held = node.value() if isinstance(node, NamedArg) else node
            if _is_container(held):
                waiting += [member for _, member in reversed(_children(held))]
            yield node

    def iter_named_nodes(self) -> Iterator[tuple[str, NamedArg]]:
        """("prefix_name", node) of all nodes. Raises ValueError without gen_name."""
        if not self._gen_name:
            raise ValueError("iter_named_nodes needs ArgsTree(..., gen_name=True)")
        for node in self.iter_nodes():
            yield f"{node.prefix()}_{node.name()}", node

    def map_leaf(self, map_function: Callable[[Any], Any]) -> Any:
        """The same containers with `map_function` of every leaf (of its NamedArg with gen_name)."""
        return self._mapped(self._root, map_function)

    def _mapped(self, value: object, function: Callable[[Any], Any]) -> Any:
        held = value.value() if isinstance(value, NamedArg) else value
        if not _is_container(held):
            return function(value)
        return _with_members(held, [self._mapped(m, function) for _, m in _children(held)])

    def map_tuple_leaf(self, map_function: Callable[[Any], Any]) -> Any:
        """`map_function` of each member of a tuple or list. Raises TypeError for another tree."""
        if not isinstance(self._io_args, list | tuple):
            raise TypeError("map_tuple_leaf needs a tuple or a list of tensors")
        return type(self._io_args)(map(map_function, self._io_args))
