"""LLVM IR to functions that can be called, kept as object code on disk.

Imports llvmlite, which takes a moment: import this in the functions that compile. A call goes
through ctypes, which gives up the interpreter lock while the loop runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import llvmlite
import llvmlite.binding as llvm

from oneflow.core.config import current_config
from oneflow.core.disk_cache import DiskCache

_lock = threading.RLock()
_LEVEL = 1
"""The level of LLVM's optimizer. Our text says its vectors itself, and is no faster at 2."""


class Machine:
    """The processor of this host and the code that runs on it."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=_LEVEL, jit=True
        )
        wide = "avx512f" in features and features["avx512f"]
        self.vector_bytes = 64 if wide else 32 if features.get("avx2") else 16
        self.has_half = bool(features.get("f16c", self.target.triple.startswith("aarch64")))
        self.has_bfloat16_pairs = bool(features.get("avx512bf16"))
        self.has_byte_dots = bool(features.get("avx512vnni") and features.get("avx512bw"))
        level = str(_LEVEL)
        parts = (llvmlite.__version__, llvm.get_host_cpu_name(), features.flatten(), level)
        self.identity = "\0".join(parts)
        self._empty = llvm.parse_assembly("")
        self.engine = llvm.create_mcjit_compiler(self._empty, self.target)


@cache
def machine() -> Machine:
    with _lock:
        return Machine()


def vector_bytes() -> int:
    return machine().vector_bytes


@lru_cache(maxsize=4096)
def function_at(address: int) -> Callable[[object], int]:
    """The function at an address that takes a list of int64: bytes, or a ctypes array."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    function: Callable[[object], int] = called(prototype, address)
    return function


def called(prototype: Any, address: int) -> Any:
    """Return the function of this ctypes prototype at an address."""
    function = prototype(address)
    function.address = address  # to ask ctypes for it takes a microsecond
    return function


def address_at(function: Callable[..., int]) -> int:
    """The address of a function that was compiled."""
    address: int = cast("Any", function).address
    return address


def address_of(text: str, *, steps: bool = False) -> int:
    """Address of the machine code of the function @KERNEL of LLVM IR; from the cache on disk where
    it is there. It stays as long as the process. steps: its loops step from address to address, so
    that LLVM need not look for addresses that may."""
    digest = hashlib.sha256(f"{machine().identity}\0{text}".encode()).hexdigest()
    with _lock:
        code = stored().get(digest) or _compiled(text, digest, steps)
        engine = machine().engine
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address: int = engine.get_function_address(f"k{digest}")
    return address


def _compiled(text: str, digest: str, steps: bool) -> bytes:
    module = llvm.parse_assembly(text.replace("@KERNEL(", f"@k{digest}("))
    module.triple = machine().target.triple
    module.data_layout = str(machine().target.target_data)
    if steps:  # a third of the time of compiling
        llvm.set_option("oneflow", "-disable-lsr=true")
    try:
        code: bytes = machine().target.emit_object(module)
    finally:
        if steps:
            llvm.set_option("oneflow", "-disable-lsr=false")
    stored().put(digest, code)
    return code


@cache
def stored() -> DiskCache:
    """The folder of object code."""
    config = current_config()
    return DiskCache(
        config.kernel_cache, ".o", config.cache_nbytes, "compiled kernels", "ONEFLOW_KERNEL_CACHE"
    )
