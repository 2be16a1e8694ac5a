"""Writes the type stubs of what the public table makes at run time. `make stubs`.

Editors and type checkers read them: a function that is handed out as it is becomes a re-export, so
that "go to definition" leads to its source; promoted, renamed and in-place forms and the methods of
Tensor are written out with the signatures of the functions behind them.
"""

from __future__ import annotations

import ast
import builtins
from functools import cache
from inspect import Signature, signature
from pathlib import Path

from oneflow.api import (
    AUTOGRAD_MODULES,
    MODULES,
    NN_MODULES,
    OPTIM_MODULES,
    ROWS,
    SAME_TYPE,
    Row,
)
from oneflow.paths import PATHS
from oneflow.surfaces import NUMPY_KEYWORDS, find, index

ROOT = Path(__file__).resolve().parents[1]
HEAD = '"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""\n'

# Namespace -> the stub that describes it, and the module whose own definitions it repeats.
STUBS = {
    "flow": "oneflow/__init__.pyi",
    "tensor": "oneflow/tensor/table_methods.pyi",
    "F": "oneflow/nn/functional.pyi",
    "linalg": "oneflow/linalg.pyi",
    "special": "oneflow/special.pyi",
    "fft": "oneflow/fft.pyi",
    "masked": "oneflow/masked.pyi",
    "signal.windows": "oneflow/signal/windows.pyi",
    "nn": "oneflow/nn/__init__.pyi",
    "optim": "oneflow/optim/__init__.pyi",
    "autograd": "oneflow/autograd/__init__.pyi",
}
PACKAGES = {
    "flow": ("oneflow", MODULES),
    "nn": ("oneflow.nn", NN_MODULES),
    "optim": ("oneflow.optim", OPTIM_MODULES),
    "autograd": ("oneflow.autograd", AUTOGRAD_MODULES),
}
SAME_TYPED = "input: TensorLike, other: TensorLike"


class Stub:
    """One stub under construction: its lines, and the imports that their annotations need."""

    def __init__(self, space: str) -> None:
        self.hidden = {n for n in index()[space] if hasattr(builtins, n)}
        self.imports: set[str] = set()
        self.lines: list[str] = []

    def text(self) -> str:
        own = {line for line in self.imports if f"{line} as {line.split()[-1]}" in self.imports}
        return "\n".join([HEAD, *sorted(self.imports - own), "", *self.lines, ""])


@cache
def module(home: str) -> ast.Module:
    """The source of a module, parsed."""
    path = ROOT / home.replace(".", "/")
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return ast.parse(source.read_text())


@cache
def definitions(home: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Functions and classes that a module defines at its top."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name: n for n in module(home).body if isinstance(n, kinds)}


@cache
def imported(home: str) -> dict[str, str]:
    """Name -> the import statement by which a module has it."""
    found = {}
    for node in ast.walk(module(home)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                rename = f" as {alias.asname}" if alias.asname else ""
                statement = f"from {node.module} import {alias.name}{rename}"
                found[alias.asname or alias.name] = statement
    return found


def need(stub: Stub, home: str, annotation: ast.expr | None) -> str:
    """The text of an annotation; what it names is imported. Unannotated: Any."""
    if annotation is None:
        stub.imports.add("from typing import Any")
        return "Any"
    annotation = ast.parse(ast.unparse(annotation), mode="eval").body
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            if node.id in imported(home):
                stub.imports.add(imported(home)[node.id])
            elif node.id in definitions(home) or node.id in assigned(home):
                stub.imports.add(f"from {home} import {node.id}")
            elif node.id in stub.hidden:  # `bool` is a function in this namespace
                stub.imports.add("import builtins")
                node.id = f"builtins.{node.id}"
    return ast.unparse(annotation)


@cache
def assigned(home: str) -> frozenset[str]:
    """Names that a module assigns at its top, such as aliases of types."""
    names = set()
    for node in module(home).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return frozenset(names)


def parameters(
    stub: Stub, home: str, function: ast.FunctionDef, extra: dict[str, ast.expr | None]
) -> str:
    """The parameter list of a function, and the keywords that the table adds to it."""
    args = function.args
    parts = []
    plain = [*args.posonlyargs, *args.args]
    first_default = len(plain) - len(args.defaults)
    for i, arg in enumerate(plain):
        default = " = ..." if i >= first_default else ""
        parts.append(f"{arg.arg}: {need(stub, home, arg.annotation)}{default}")
    if args.vararg:
        parts.append(f"*{args.vararg.arg}: {need(stub, home, args.vararg.annotation)}")
    elif args.kwonlyargs or extra:
        parts.append("*")
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        tail = " = ..." if default is not None else ""
        parts.append(f"{arg.arg}: {need(stub, home, arg.annotation)}{tail}")
    parts += [f"{name}: {need(stub, home, annotation)} = ..." for name, annotation in extra.items()]
    if args.kwarg:
        parts.append(f"**{args.kwarg.arg}: {need(stub, home, args.kwarg.annotation)}")
    return ", ".join(parts)


def added_keywords(row: Row, function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    """The other spellings of keywords under which the table offers a function: their types."""
    own = {a.arg: a.annotation for a in (*function.args.args, *function.args.kwonlyargs)}
    numpy = {k: v for k, v in NUMPY_KEYWORDS.items() if v in own and k not in own}
    return {new: own.get(old) for new, old in {**numpy, **row.keywords}.items()}


@cache
def made_by(home: str) -> dict[str, ast.expr]:
    """Name -> what a module assigns to it at its top."""
    pairs = [(n.targets[0], n.value) for n in module(home).body if isinstance(n, ast.Assign)]
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def definition(home: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The definition behind a name of a module, also if that is another name of it."""
    value = made_by(home).get(name)
    if isinstance(value, ast.Name):
        return definition(home, value.id)
    return definitions(home).get(name)


def signature_made(stub: Stub, home: str, name: str, method: bool) -> str | None:
    """The parameters and the result of what a function of the module made, by its annotation
    `-> Callable[[Tensor, ...], ...]`."""
    value = made_by(home).get(name)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    maker = definitions(home).get(value.func.id)
    result = maker.returns if isinstance(maker, ast.FunctionDef) else None
    if not isinstance(result, ast.Subscript) or ast.unparse(result.value) != "Callable":
        return None
    assert isinstance(result.slice, ast.Tuple)
    taken, given = result.slice.elts
    if not isinstance(taken, ast.List):
        return None
    names = ["self" if method else "input", "other"]
    parts = [f"{n}: {need(stub, home, a)}" for n, a in zip(names, taken.elts, strict=False)]
    if method:
        parts[0] = "self"
    return f"({', '.join(parts)}) -> {need(stub, home, given)}"


def made_parameters(stub: Stub, row: Row) -> str:
    """The parameter list of a function that is made of an op's declaration."""
    return written(stub, signature(find(row.surfaces[0].rstrip("_"), row.names[0])), row)


def written(stub: Stub, made: Signature, row: Row) -> str:
    """The parameters of a signature, and other spellings of them that the table knows."""
    kinds = {}
    for p in made.parameters.values():
        words = str(p.annotation).split(" | ")
        if "Number" in words:
            stub.imports.add("from oneflow.core.operand import Number")
        if not stub.hidden.isdisjoint(words):
            stub.imports.add("import builtins")
            words = [f"builtins.{word}" if word in stub.hidden else word for word in words]
            kinds[p.name] = " | ".join(words)
        else:
            kinds[p.name] = p.annotation
    parts = [
        f"{p.name}: {kinds[p.name]}" + ("" if p.default is p.empty else f" = {p.default!r}")
        for p in made.parameters.values()
    ]
    if row.keywords:
        parts += ["*", *(f"{new}: {kinds[old]} = ..." for new, old in row.keywords.items())]
    return ", ".join(parts)


LAYERS = {row.layer: row for row in ROWS if row.layer}


def write_layer(stub: Stub, row: Row, name: str) -> None:
    """A layer that is made of a function: its parameters are attributes, too."""
    stub.imports |= {
        "from oneflow.nn.module import Module",
        "from oneflow.tensor.tensor import Tensor",
    }
    made = signature(find("nn", row.own))
    taken = written(stub, made, LAYERS[row.own])
    stub.lines.append(f"class {name}(Module):")
    stub.lines += [f"    {p.name}: {p.annotation}" for p in made.parameters.values()]
    stub.lines.append(f"    def __init__(self{', ' if taken else ''}{taken}) -> None: ...")
    stub.lines.append("    def forward(self, x: Tensor) -> Tensor: ...")


def export(stub: Stub, row: Row, name: str) -> None:
    """Export what a row is made of. An import exports a name in a stub only if it does not rename:
    another name is assigned, so that `flow.device` and `flow.dtype` are types to checkers."""
    if row.own == name:
        stub.imports.add(f"from {row.home} import {name} as {name}")
        return
    hidden = f"_{row.home.rpartition('.')[2]}_{row.own}"
    stub.imports.add(f"from {row.home} import {row.own} as {hidden}")
    stub.lines.append(f"{name} = {hidden}")


def write(stub: Stub, row: Row, name: str, in_place: bool, method: bool) -> None:
    """One name of a namespace."""
    indent = "    " if method else ""
    if row.promote is not None:
        stub.imports.add("from oneflow.tensor.tensor import Tensor")
        taken = SAME_TYPED if row.promote == SAME_TYPE else made_parameters(stub, row)
        if "TensorLike" in taken:
            stub.imports.add("from oneflow.core.operand import TensorLike")
        taken = (
            taken.replace("input: TensorLike", "self").replace("input: Tensor", "self")
            if method
            else taken
        )
        stub.lines.append(f"{indent}def {name}({taken}) -> Tensor: ...")
        return
    if row.own in LAYERS:
        write_layer(stub, row, name)
        return
    found = definition(row.home, row.own)
    if row.own.startswith("_foreach_") and found is None and row.own not in made_by(row.home):
        stub.imports.add("from typing import Any")  # its module makes it in a loop
        stub.lines.append(f"def {name}(*args: Any, **kwargs: Any) -> Any: ...")
        return
    extra = added_keywords(row, found) if isinstance(found, ast.FunctionDef) else {}
    if not (method or in_place or extra or row.order):
        export(stub, row, name)
        return
    if method and isinstance(given := find("tensor", name), property) and given.fget:
        getter = definition(row.home, given.fget.__name__)
        assert isinstance(getter, ast.FunctionDef)
        kind = need(stub, row.home, getter.returns)
        stub.lines += ["    @property", f"    def {name}(self) -> {kind}: ..."]
        return
    if not isinstance(found, ast.FunctionDef):  # made by a function
        told = signature_made(stub, row.home, row.own, method)
        if told is not None:
            stub.lines.append(f"{indent}def {name}{told}: ...")
            return
        stub.imports |= {"from typing import Any", "from oneflow.tensor.tensor import Tensor"}
        first = "self, " if method else "input: Tensor, "
        result = "Tensor" if in_place or name.endswith("_") else "Any"
        stub.lines.append(f"{indent}def {name}({first}*args: Any, **kwargs: Any) -> {result}: ...")
        return
    taken = parameters(stub, row.home, found, extra)
    if method:
        _, _, others = taken.partition(", ")
        taken = "self" + (f", {others}" if others else "")
        if found.args.vararg and not found.args.args:
            taken = f"self, {taken}"
    result = need(stub, row.home, found.returns)
    if in_place:
        stub.imports.add("from oneflow.tensor.tensor import Tensor")
        result = "Tensor"
    stub.lines.append(f"{indent}def {name}({taken}) -> {result}: ...")


def render(space: str) -> str:
    """The stub of one namespace."""
    stub = Stub(space)
    method = space == "tensor"
    package, modules = PACKAGES.get(space, ("", ()))
    stub.imports |= {_imported(package, name) for name in modules}
    if space == "flow":
        stub.lines.append("__version__: str")
    if method:
        stub.lines += ["class TableMethods:", "    __slots__ = ()"]
    for name, (row, in_place) in sorted(index()[space].items()):
        write(stub, row, name, in_place, method)
    return stub.text()


def _imported(package: str, name: str) -> str:
    """Return how a stub imports a module below a package; of one that is a row of oneflow/paths.py,
    the file where most of its names are.
    """
    below = f"{package}.{name}".removeprefix("oneflow.")
    places = PATHS.get(below, "").split()
    if not places:
        return f"from {package} import {name} as {name}"
    home, _, own = f"oneflow.{places[0]}".rpartition(".")
    return f"from {home} import {own} as {name}"


def main() -> None:
    for space, path in STUBS.items():
        (ROOT / path).write_text(render(space))


if __name__ == "__main__":
    main()
