"""Every CUDA source compiles with NVRTC, which needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import importlib.util
import platform
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import dtype_of
from oneflow.core.op import find_op
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import cuda_launch, draw_seeds, registry
from oneflow.kernels.cuda_launch import C_TYPES, functions_of, source_of
from oneflow.kernels.expressions import cuda_form
from oneflow.kernels.expressions.cuda_rows import RowRule
from oneflow.kernels.expressions.formula import Formula

registry.load()
SOURCES = sorted(cuda_launch.SOURCES)
FOLDER = Path(cuda_launch.__file__).parent


def _find_nvrtc() -> ctypes.CDLL | None:
    places = ["/usr/local/cuda*/lib64/libnvrtc.so*", "/usr/local/cuda*/targets/*/lib/libnvrtc.so*"]
    names = [name for place in places for name in sorted(glob.glob(place))]
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for root in (spec.submodule_search_locations or ()) if spec else ():
            names += sorted(str(p) for p in Path(root, "lib").glob("libnvrtc.so*"))
    names += [name for name in (ctypes.util.find_library("nvrtc"),) if name]
    for name in names:
        try:
            for builtins in Path(name).parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(builtins))  # NVRTC looks for it by name: it finds what is loaded
            return ctypes.CDLL(name)
        except OSError:  # found, but not loadable here: try the next
            continue
    return None


NVRTC = _find_nvrtc()
needs_nvrtc = pytest.mark.skipif(
    NVRTC is None and platform.machine() != "x86_64", reason="NVRTC comes with the tests on x86-64"
)
ARCHITECTURES = ["compute_75", "compute_80", "compute_90", "compute_100"]


def _in_turn(*choices: Iterable[object]) -> list[Any]:
    """All combinations, each for one architecture, in turn; for the other ones in `make slow`."""
    count = len(ARCHITECTURES)
    return [
        pytest.param(
            *chosen,
            architecture,
            marks=() if (number + number // count) % count == place else pytest.mark.slow,
        )
        for number, chosen in enumerate(product(*choices))
        for place, architecture in enumerate(ARCHITECTURES)
    ]


def _compile(text: str, architecture: str) -> tuple[int, str]:
    """(status, log) of compiling `text` with the options that CuPy is given."""
    assert NVRTC is not None
    program = ctypes.c_void_p()
    made = NVRTC.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    assert made == 0
    flags = (f"--gpu-architecture={architecture}".encode(), b"-std=c++17")
    status = NVRTC.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@needs_nvrtc
@pytest.mark.parametrize(("module", "dtype", "architecture"), _in_turn(SOURCES, C_TYPES))
def test_source_compiles(module: str, dtype: str, architecture: str) -> None:
    status, log = _compile(source_of(module, dtype), architecture)
    assert status == 0, log


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_seeds_of_recorded_draws_compile(architecture: str) -> None:
    status, log = _compile(draw_seeds.SOURCE, architecture)
    assert status == 0, log


def test_every_kernel_that_is_launched_is_defined_and_the_other_way_round() -> None:
    launched = {
        name
        for path in FOLDER.glob("*.py")
        for name in re.findall(
            r"\b(?:by_row|by_item|by_block|flat|launch)\(\s*\"(\w+)\"", path.read_text()
        )
    }
    assert launched == {name for topic in SOURCES for name in functions_of(topic)}


# ---- kernels that are made from formulas ---------------------------------------------------------


RULES = [
    RowRule("sgd_update", (), (), False),
    RowRule("momentum_update", (("momentum", 0.9),), (0.0,), False),
    RowRule("adagrad_update", (("lr_decay", 0.1),), (0.5,), False),
    RowRule("rmsprop_update", (("centered", True),), (0.0, 0.0, 0.0), False),
    RowRule("ftrl_update", (("lr_power", -0.4),), (0.1, 0.0), False),
    RowRule("adam_update", (), (0.0, 0.0), True),
]
FORMULAS: list[tuple[str, dict[str, object]]] = [
    *((f"{name}_update", {"weight_decay": 0.1, "maximize": True}) for name in
      ("sgd", "adam", "amsgrad", "adagrad", "adadelta", "adamax", "nadam", "radam", "asgd")),
    ("rprop_update", {}), ("asgd_rates", {}), ("nadam_product", {}),
    ("momentum_update", {"momentum": 0.9, "dampening": 0.1, "nesterov": True}),
    ("adam_update", {"weight_decay": 0.1, "decoupled": True, "do_bias_correction": False}),
    ("rmsprop_update", {"momentum": 0.9, "centered": True}),
    ("ftrl_update", {"lr_power": -0.4, "l1": 0.1}),
    *((name, {"approximate": form}) for name in ("gelu", "gelu_grad") for form in ("none", "tanh")),
    ("dropout", {"p": 0.1, "seed": 3}),
    ("smooth_l1_loss", {"beta": 0.5}), ("smooth_l1_loss_grad", {"beta": 0.0}),
    ("bce_with_logits_loss", {}), ("bce_with_logits_loss_grad", {}),
    ("bce_loss", {}), ("bce_loss_grad", {}),
    ("softmax", {}), ("softmax_grad", {"scale": 0.5}), ("log_softmax", {}),
    ("log_softmax_grad", {}), ("causal_softmax", {"scale": 0.5}),
    ("layer_norm", {"begin_axis": 1}), ("rms_norm", {"begin_axis": 1}),
    ("layer_norm_grad", {"begin_axis": 1}), ("rms_norm_grad", {"begin_axis": 1}),
    ("sparse_softmax_cross_entropy", {"label_smoothing": 0.1}),
    ("sparse_softmax_cross_entropy_grad", {}),
    ("map", {"expression": "where(isnan(a) , sign(b) * relu(a), maximum(a, -inf) ** abs(b))"}),
    ("map", {"expression": "cast(floor_divide(a, b) > 0.5, int32) - cast(round(a), int32)"}),
]  # fmt: skip


def _formula(name: str, dtype: str, attrs: dict[str, object]) -> Formula:
    op = find_op(name)
    full, single = TensorType((3, 4), dtype_of(dtype)), TensorType((), dtypes.float64)
    step = TensorType((), dtypes.int64)
    row, labels = TensorType((4,), dtype_of(dtype)), TensorType((3,), dtypes.int64)
    samples = row.with_shape((3,))
    scalars = {"lr": single, "step": step, "gamma": row, "beta": row}
    scalars |= dict.fromkeys(("eta", "mu", "mu_product", "old_eta", "old_mu", "product"), single)
    if name.startswith("sparse"):
        scalars |= {"labels": labels, "lse": samples, "d_loss": samples}
    if name.endswith("norm_grad"):
        scalars |= dict.fromkeys(("mean", "inv_std", "inv_rms"), samples)
    types = tuple(scalars.get(n, full) for n in op.operands or "ab")
    formula = Formula(op, types, attrs)
    assert formula.can_compile
    return formula


def _spec(name: str, dtype: str, attrs: dict[str, object]) -> cuda_form.CudaSpec:
    return cuda_form.spec_of(_formula(name, dtype, attrs), 1)


def _texts(name: str, dtype: str, attrs: dict[str, object]) -> list[str]:
    """Sources of the functions that one call launches."""
    formula = _formula(name, dtype, attrs)
    parts = cuda_form.parts_of(formula)
    return [cuda_form.source_of(cuda_form.spec_of(formula, 2, part)) for part in parts]


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "attrs", "dtype"),
    [
        pytest.param(*formula, dtype, marks=pytest.mark.slow if (number + place) % 2 else ())
        for number, formula in enumerate(FORMULAS)
        for place, dtype in enumerate(["float16", "bfloat16", "float32", "float64"])
    ],
)
def test_source_of_a_formula_compiles(name: str, attrs: dict[str, object], dtype: str) -> None:
    for text in _texts(name, dtype, attrs):
        status, log = _compile(text, "compute_80")
        assert status == 0, log + text[len(cuda_form.PRELUDE) :]


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["adam_update", "sgd_update", "gelu"])
def test_source_of_several_calls_compiles(name: str, dtype: str) -> None:
    text = cuda_form.source_of_many(_spec(name, dtype, {}))
    status, log = _compile(text, "compute_80")
    assert status == 0, log + text[len(cuda_form.PRELUDE) :]


@needs_nvrtc
@pytest.mark.parametrize(("rule", "architecture"), _in_turn(RULES))
def test_source_of_an_update_of_rows_compiles(rule: RowRule, architecture: str) -> None:
    status, log = _compile(rule.text(), architecture)
    assert status == 0, log


def test_an_update_becomes_one_function_that_reads_the_rate_on_the_device() -> None:
    (text,) = _texts("adam_update", "float32", {})
    assert text.count('extern "C" __global__ void run(') == 1
    assert "const double* s_lr, const i64* s_step" in text


def test_dropout_draws_by_the_global_index() -> None:
    (text,) = _texts("dropout", "float16", {"p": 0.5, "seed": 1})
    assert "first_word((u64)index, seed)" in text and "to_float16(" in text
