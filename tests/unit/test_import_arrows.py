"""Imports point one way: the arrows of CONTRIBUTING.md, read from the source of every file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protos", "kernels", "boxing", "actors", "scheduler", "launcher")  # linked into oneflow/
BOXING_COSTS = (
    "boxing.boxes",
    "boxing.link",
    "boxing.parts",
    "boxing.route",
    "boxing.rows",
    "boxing.signatures",
    "boxing.transitions",
)

# What a package may import besides itself; the front end (any other package) may import all.
ARROWS: dict[str, tuple[str, ...]] = {
    "protos": (),
    "core": ("protos",),
    "services": ("protos", "core"),
    "ops": ("protos", "core"),
    "kernels": ("protos", "core", "ops", "one_embedding.store"),
    "boxing": ("protos", "core", "services", "ops", "kernels"),
    "actors": ("protos", "core", "services", "ops", "kernels", "boxing"),
    "scheduler": ("protos", "core", "services", "ops", *BOXING_COSTS),
    "launcher": ("protos", "core", "services", "ops", *BOXING_COSTS, "scheduler"),
}
# A registry loads the files that fill it, at the first look-up and never at import; many random
# words load the machine code that makes them; and the type of an op's result is the front end's
# class, whose name type checkers alone read.
LOADERS = {("core.op", "ops"), ("core.rng", "kernels"), ("core.operand", "tensor")}
# The front end's layers, lowest first; a module belongs to the longest name that leads to it.
WORLD = ("world", "meeting", "groups", "device_groups", "ending", "long_waits")
# The folders of the compiler, and those that each may import besides itself.
COMPILER: dict[str, tuple[str, ...]] = {
    "layout": (),
    "rewrite": ("layout",),
    "schedule": ("layout",),
    "lower": ("layout", "schedule"),
}
LAYERS: tuple[tuple[str, ...], ...] = (
    tuple(f"distributed.{name}" for name in WORLD),  # which ranks there are
    ("tensor",),
    ("autograd",),
    ("functional",),
    ("nn", "optim"),
    ("graph",),
)
# Doors: modules that only import, so that what users find there, or what completes a class, is
# there whatever they import first.
DOORS = {"tensor": "functional", "autograd": "functional", "nn.graph": "graph"}
PUBLIC = (  # what users import, and what would be half loaded were the doors not there
    *("autograd.functional", "autograd.api", "distributed", "functional", "graph.graph", "jobs"),
    *("io.checkpoint", "nn", "nn.functional", "nn.init", "nn.module", "optim", "optim.optimizer"),
    *("tensor.tensor", "tensor.tape", "utils.data"),
)
HEAVY_LIBRARIES = (  # 20 ms or more to import, most of which a run never needs; or optional
    *("cryptography", "grpc", "grpc_health", "llvmlite", "msgspec", "numba", "google"),
    *("prometheus_client", "torch", "tqdm", "uvloop"),
    *(
        "cupy",
        "cudnn",
        "cupyx",
        "lmdb",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "pathspec",
        "psutil",
        "pynvml",
        "ray",
        "zstandard",
    ),  # optional
)
COMMAND_LINE = "cli"  # verbs import what they need when they run, so that help is quick
FUNCTION_IMPORTS = 99
"""Imports within functions that there may be besides HEAVY_LIBRARIES and COMMAND_LINE, for which
alone they are meant. Those that are left import modules of ours which import such a library, or
which only ranks of a larger world need. The number only goes down."""
FIRST_OP_MODULES = 154
HEAVY = ("numba", "grpc", "torch", "cupy", "google.protobuf")


def sources() -> dict[str, Path]:
    """Module name without the leading `oneflow.` -> file; each file once, rooms being linked."""
    found = {}
    for base in (*(ROOT / room for room in ROOMS), ROOT / "oneflow"):
        top = base.parent if base.name in ROOMS else base
        for path in base.rglob("*.py"):
            relative = path.relative_to(top)
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")) or _is_linked(base, path):
                continue
            found[".".join(relative.with_suffix("").parts).removesuffix(".__init__")] = path
    found.pop("__init__", None)  # the facade: gathering names from everywhere is what it is for
    return found


def _is_linked(base: Path, path: Path) -> bool:
    folders = (parent for parent in path.parents if parent != base and base in parent.parents)
    return any(folder.is_symlink() for folder in folders)


class Import(NamedTuple):
    """One import of a file. target: module.* for `import module`, and module.name for `from module
    import name`.  is_run: do interpreters see it, and not type checkers alone?  is_deep: in a
    function, and of no heavy library?
    """

    line: int
    target: str
    is_run: bool
    is_deep: bool


@cache
def imports(text: str, module: str, is_package: bool = False) -> tuple[Import, ...]:
    """Every import anywhere in a file, functions included; each file is parsed once."""
    return tuple(_found([ast.parse(text)], module, is_package, True, False))


def _found(
    nodes: Iterable[ast.AST], module: str, is_package: bool, is_run: bool, is_deep: bool
) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            deep = is_deep and _is_light(node)
            base = _absolute(node, module, is_package) if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                target = f"{base}.{alias.name}" if base else f"{alias.name}.*"
                yield Import(node.lineno, target, is_run, deep)
        elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
            for target in _leading_text(node):
                yield Import(node.lineno, target, is_run, False)
        is_seen = not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from _found(
            ast.iter_child_nodes(node), module, is_package, is_run and is_seen, is_deep or inner
        )


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = ["oneflow", *module.split(".")]
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _leading_text(node: ast.Call) -> Iterator[str]:
    """`oneflow.kernels` of `import_module("oneflow.kernels")` or of an f-string that starts so."""
    for argument in node.args[:1]:
        first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value.rstrip(".") + ".*"


def violations(
    module: str, text: str, known: frozenset[str], is_package: bool = False
) -> list[str]:
    """One line per import that goes against the arrows."""
    package = module.split(".")[0]
    result = []
    for line, target, *_ in imports(text, module, is_package):
        if not target.startswith("oneflow."):
            continue
        inner = target.removeprefix("oneflow.")
        if "." not in inner and inner not in known and inner != "__version__":
            result.append(
                f"{module}:{line} imports the facade ({target}); import the defining module"
            )
        elif not _is_allowed(package, module, inner):
            result.append(f"{module}:{line} imports {target}, which is not below {package}")
    return result


def _is_allowed(package: str, module: str, inner: str) -> bool:
    below = ARROWS.get(package)
    top = inner.split(".")[0]
    if below is None or top == "__version__" or (module, top) in LOADERS:
        return True
    return any(inner == name or inner.startswith(f"{name}.") for name in (package, *below))


SOURCES = sources()
MODULES = frozenset(SOURCES)
FRONT_END = {n: path for n, path in SOURCES.items() if n.split(".")[0] not in ARROWS}


@pytest.mark.parametrize("package", sorted({name.split(".")[0] for name in SOURCES}))
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for name, path in SOURCES.items():
        if name.split(".")[0] == package:
            wrong += violations(name, path.read_text(), MODULES, _is_package(path))
    assert not wrong, "\n".join(wrong)


def test_the_folders_of_the_compiler_import_one_way() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in SOURCES.items()
        for line, target, *_ in imports(path.read_text(), name, _is_package(path))
        if not _is_allowed_in_compiler(name, target)
    ]
    assert not wrong, "\n".join(wrong)


def _is_allowed_in_compiler(module: str, target: str) -> bool:
    """The files beside the folders run the passes; passes do not import them."""
    inner = target.removeprefix("oneflow.").split(".")
    own = module.split(".")
    is_pass = own[:2] == ["scheduler", "compiler"] and own[2:] and own[2] in COMPILER
    if not is_pass or inner[:2] != own[:2]:
        return True
    return inner[2] in (own[2], *COMPILER[own[2]])


@pytest.mark.parametrize(
    ("folder", "target", "is_allowed"),
    [
        ("rewrite", "layout.signatures", True),
        ("layout", "rewrite.zero", False),
        ("schedule", "lower.connect", False),
        ("lower", "schedule.order", True),
        ("lower", "pipeline", False),
    ],
)
def test_folders_of_the_compiler(folder: str, target: str, is_allowed: bool) -> None:
    found = _is_allowed_in_compiler(
        f"scheduler.compiler.{folder}.a", f"oneflow.scheduler.compiler.{target}.name"
    )
    assert found is is_allowed


def level(module: str) -> int | None:
    """The layer of a module of the front end; None outside of the layers."""
    found = [
        (len(name), at)
        for at, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    return max(found)[1] if found else None


def upward(module: str, text: str, is_package: bool = False) -> list[str]:
    """One line per import of a layer that stands above the module's own."""
    own = level(module)
    result = []
    for line, target, is_run, _ in imports(text, module, is_package):
        inner = target.removeprefix("oneflow.").removesuffix(".*")
        above = level(inner) if is_run and target.startswith("oneflow.") else None
        is_door = module in DOORS and inner.startswith(DOORS[module])
        if own is not None and above is not None and above > own and not is_door:
            result.append(f"{module}:{line} imports {inner}, a layer above")
    return result


def test_the_layers_of_the_front_end_import_downwards() -> None:
    wrong = []
    for name, path in FRONT_END.items():
        wrong += upward(name, path.read_text(), _is_package(path))
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_shelf_of_compatible_names() -> None:
    """The table of names and paths.py name its modules, and import them on demand; mock_torch is
    the name under which users find a part of it.
    """
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in SOURCES.items()
        if not name.startswith(("compat", "mock_torch"))
        for line, target, *_ in imports(path.read_text(), name, _is_package(path))
        if target.startswith("oneflow.compat")
    ]
    assert not wrong, "\n".join(wrong)


def test_doors_only_import() -> None:
    for name in DOORS:
        body = ast.parse(SOURCES[name].read_text()).body
        kinds = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign)
        assert all(isinstance(node, kinds) for node in body), name


def test_no_two_modules_of_the_front_end_import_each_other() -> None:
    edges = {
        name: _modules_of(imports(path.read_text(), name, _is_package(path)))
        for name, path in FRONT_END.items()
        if name not in DOORS
    }
    while True:  # peel off what imports, or is imported by, nothing that is left; cycles stay
        used = {target for name, targets in edges.items() for target in targets - {name}}
        free = [n for n, targets in edges.items() if n not in used or not targets & edges.keys()]
        if not free:
            break
        for name in free:
            del edges[name]
    assert not edges, f"these import each other: {sorted(edges)}"


def _is_package(path: Path) -> bool:
    return path.name == "__init__.py"


def _modules_of(found: Iterable[Import]) -> set[str]:
    """The modules that imports at run time lead to; a name of a package leads to the package."""
    names = [one.target for one in found if one.is_run and "oneflow." in one.target]
    targets = [name.removeprefix("oneflow.").removesuffix(".*") for name in names]
    return {t if t in MODULES else t.rpartition(".")[0] for t in targets}


def test_every_room_is_a_link_into_the_package() -> None:
    for room in ROOMS:
        link = ROOT / "oneflow" / room
        assert link.is_symlink(), f"oneflow/{room} must be a link to ../{room}"
        assert link.resolve() == (ROOT / room).resolve()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("scheduler.jobs", "from oneflow.actors.actor import Actor"),
        ("actors.bind", "def f():\n    import oneflow.scheduler.store"),
        ("scheduler.compiler.lower.connect", "from oneflow.boxing.collectives import shm"),
        ("scheduler.compiler.lower.connect", "from oneflow import boxing"),
        ("core.graph", "from oneflow.ops import matmul"),
        ("kernels.matmul", "from ..actors import memory"),
        ("ops.matmul", "import importlib\nimportlib.import_module('oneflow.kernels.matmul')"),
        ("ops.matmul", "import importlib\nimportlib.import_module(f'oneflow.kernels.{1}')"),
        ("nn.modules", "import oneflow as flow"),
        ("nn.modules", "from oneflow import Tensor"),
        ("launcher.local", "from oneflow.nn import Graph"),
    ],
)
def test_wrong_import_is_found(module: str, text: str) -> None:
    assert len(violations(module, text, frozenset({"actors", "boxing", "nn"}))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("scheduler.compiler.lower.connect", "from oneflow.boxing.route import route"),
        ("scheduler.jobs", "from oneflow.boxing import route"),
        ("core.op", "def find():\n    import oneflow.ops"),
        ("nn.graph", "def run():\n    from oneflow.actors.daemon import Daemon"),
        ("actors.bind", "from oneflow.protos import plan_pb2\nimport numpy"),
        ("kernels.matmul", "from . import registry"),
    ],
)
def test_right_import_is_allowed(module: str, text: str) -> None:
    assert violations(module, text, frozenset({"boxing", "ops"})) == []


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        ("oneflow", HEAVY),
        ("oneflow.cli.submit, oneflow.cluster.client, oneflow.jobs.peek", ("numpy", "numba")),
    ],
)
def test_importing_oneflow_or_its_client_loads_nothing_heavy(
    imported: str, heavy: tuple[str, ...]
) -> None:
    code = f"import {imported}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_first_local_op_loads_few_modules() -> None:
    """Each costs about a millisecond. Those of the public table (oneflow/api) are not counted, nor
    is the table of variables, which is loaded where some are set.
    """
    code = "import sys, oneflow as flow; flow.ones(2) + 1; print(*sys.modules)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONEFLOW_")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    ours = [n for n in done.stdout.split() if n.startswith("oneflow") and ".api." not in n]
    assert len(ours) <= FIRST_OP_MODULES, sorted(ours)


def test_users_may_import_any_module_first() -> None:
    """Each in a process of its own, forked where NumPy is there."""
    code = f"""
import importlib, os, numpy
for name in {PUBLIC!r}:
    child = os.fork()
    if not child:
        importlib.import_module("oneflow." + name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def test_imports_within_functions_become_no_more() -> None:
    found = [
        f"{module}:{line}"
        for module, path in SOURCES.items()
        if module.split(".")[0] != COMMAND_LINE
        for line in {
            i.line for i in imports(path.read_text(), module, _is_package(path)) if i.is_deep
        }
    ]
    assert len(found) <= FUNCTION_IMPORTS, f"{len(found)} of them: {' '.join(found)}"


def _is_light(node: ast.Import | ast.ImportFrom) -> bool:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return not any(name.split(".")[0] in HEAVY_LIBRARIES for name in names)
