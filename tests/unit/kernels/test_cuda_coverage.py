"""Every op has a GPU kernel, and what a GPU needs is imported when a GPU is used. Needs no GPU."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.core.op import REGISTRY
from oneflow.kernels import registry

FOLDER = Path(registry.__file__).parent
FUSED = "cuda_kernels.py"


def _module_level_imports(path: Path) -> set[str]:
    """Top names of the packages that importing the file imports."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _fused_ops() -> set[str]:
    """The ops that cuda_kernels.py registers, read from its text: importing it needs CuPy."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / FUSED).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first = node.args[0]
            is_name = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if node.func.id in ("kernel", "_through_float32") and is_name:
                found.add(str(first.value))  # type: ignore[attr-defined]
    return found


def test_every_op_has_a_gpu_kernel() -> None:
    fused = _fused_ops()
    missing = [n for n in REGISTRY if n not in fused and not registry.variants(n, "cuda")]
    assert not missing


def test_ops_without_a_generic_gpu_kernel_have_fused_ones_for_every_float() -> None:
    """A fused kernel takes float32 and float64; half precision needs one of its own, then."""
    text = (FOLDER / FUSED).read_text()
    alone = {name for name in REGISTRY if not registry.variants(name, "cuda")}
    assert alone <= _fused_ops()
    assert all(f'_through_float32("{name}"' in text for name in alone)


def test_generic_gpu_kernels_are_not_compiled_for_the_cpu() -> None:
    for name in REGISTRY:
        for variant in registry.variants(name, "cuda"):
            source = inspect.getsource(variant.function)
            assert "numba" not in source and "kernels.fused" not in source, name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_kernel_files_import_no_compiler_when_loaded(path: Path) -> None:
    heavy = {"numba", "cupy", "cupyx"} - ({"cupy"} if path.name == FUSED else set())
    assert not _module_level_imports(path) & heavy


def test_loading_the_kernels_imports_neither_numba_nor_cupy() -> None:
    program = (
        "import sys; from oneflow.kernels import registry, cuda_device; registry.load();"
        "print([m for m in ('numba', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
