"""Every op has a GPU kernel, and the modules for a GPU are imported when a GPU is used. Needs no
GPU.
"""

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


def _module_level_imports(path: Path) -> set[str]:
    """Top names of the packages that importing the file imports."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_every_op_has_a_gpu_kernel() -> None:
    assert not [name for name in REGISTRY if not registry.variants(name, "cuda")]


def test_generic_gpu_kernels_are_not_compiled_for_the_cpu() -> None:
    for name in REGISTRY:
        for variant in registry.variants(name, "cuda"):
            source = inspect.getsource(variant.function)
            assert "numba" not in source and "kernels.fused" not in source, name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_kernel_files_import_no_compiler_when_loaded(path: Path) -> None:
    heavy = {"numba", "cupy", "cupyx", "llvmlite"}
    assert not _module_level_imports(path) & heavy


def test_loading_the_kernels_imports_neither_numba_nor_cupy() -> None:
    program = (
        "import sys; from oneflow.kernels import registry, cuda_device; registry.load();"
        "print([m for m in ('numba', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
