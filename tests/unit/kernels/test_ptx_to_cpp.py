"""Instructions in PTX that the CUDA emulation has translated compute NumPy's values."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

EMULATION = Path(__file__).parents[2] / "cuda_emulation"
COMPILER = shutil.which("g++")
FLAGS = ["-O1", "-fPIC", "-shared", "-std=c++17", "-w", "-mf16c", "-mfma", "-ffp-contract=off"]
NUM_THREADS = 64
Words = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]

HEAD = """
.version 8.8
.target sm_90
.address_size 64
.global .align 4 .u32 steps[3] = {1, 10, 100};
.visible .entry k(.param .u64 xs, .param .u64 ys, .param .u64 out) .maxntid 64 {
  .reg .b64 %rd<8>; .reg .b32 %r<12>, %f<8>; .reg .b16 %h<4>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [xs]; ld.param.u64 %rd2, [ys]; ld.param.u64 %rd3, [out];
  mov.u32 %r1, %tid.x;  // the thread's place
  mul.wide.s32 %rd4, %r1, 4;
  add.s64 %rd1, %rd1, %rd4; add.s64 %rd2, %rd2, %rd4; add.s64 %rd3, %rd3, %rd4;
  ld.global.u32 %r2, [%rd1]; ld.global.u32 %r3, [%rd2];
"""
HOST = """
extern "C" unsigned long long emu_bytes_loaded = 0, emu_bytes_stored = 0;
extern "C" void emu_trap(const char*) { abort(); }
extern "C" void emu_exit(Thr*) {}
extern "C" void run(const void* xs, const void* ys, void* out, int count) {
  const void* params[] = {xs, ys, out};
  for (int k = 0; k < count; ++k) {
    Thr t = {}; t.tid[0] = t.lin = k; t.ntid[0] = count; t.params = (char*)params;
    emu_entries[0].run(&t);
  }
}
"""


def signed(x: Words) -> np.ndarray:
    return x.view(np.int32)


def real(x: Words) -> np.ndarray:
    """The words as positive floats of a moderate size."""
    return (x >> np.uint32(8)).astype(np.float32) / np.float32(1000)


TO_FLOATS = "shr.u32 %r5, %r2, 8; cvt.rn.f32.u32 %f2, %r5; div.rn.f32 %f2, %f2, 0f447a0000;"
TO_FLOATS += "shr.u32 %r5, %r3, 8; cvt.rn.f32.u32 %f3, %r5; div.rn.f32 %f3, %f3, 0f447a0000;"
PLACES = np.arange(NUM_THREADS, dtype=np.uint32)
# What leaves %r4, from %r2 and %r3, with the thread's place in %r1; and NumPy's words for it.
CASES: dict[str, Callable[[Words, Words], np.ndarray]] = {
    "add.s32 %r4, %r2, %r3;": lambda x, y: x + y,
    "sub.u32 %r4, %r2, %r3;": lambda x, y: x - y,
    "add.cc.u32 %r5, %r2, %r3; addc.u32 %r4, 0, 0;": lambda x, y: x > ~y,
    "mul.lo.s32 %r4, %r2, %r3;": lambda x, y: x * y,
    "mul.hi.u32 %r4, %r2, %r3;": lambda x, y: x.astype(np.uint64) * y >> np.uint64(32),
    "mad.lo.u32 %r4, %r2, %r3, 7;": lambda x, y: x * y + np.uint32(7),
    "div.u32 %r4, %r2, %r3;": lambda x, y: x // y,
    "rem.s32 %r4, %r2, %r3;": lambda x, y: np.fmod(signed(x), signed(y)),
    "min.s32 %r4, %r2, %r3;": lambda x, y: np.minimum(signed(x), signed(y)),
    "max.u32 %r4, %r2, %r3;": np.maximum,
    "and.b32 %r5, %r2, %r3; not.b32 %r4, %r5;": lambda x, y: ~(x & y),
    "shl.b32 %r4, %r2, 5;": lambda x, y: x << np.uint32(5),
    "shr.s32 %r4, %r2, 40;": lambda x, y: signed(x) >> 31,
    "shr.u32 %r4, %r2, 40;": lambda x, y: np.zeros_like(x),
    "shf.l.wrap.b32 %r4, %r2, %r2, 8;": lambda x, y: x << np.uint32(8) | x >> np.uint32(24),
    "prmt.b32 %r4, %r2, %r3, 0x0123;": lambda x, y: x.byteswap(),
    "bfe.u32 %r4, %r2, 4, 8;": lambda x, y: x >> np.uint32(4) & np.uint32(255),
    "lop3.b32 %r4, %r2, %r3, %r1, 0x96;": lambda x, y: x ^ y ^ PLACES,
    "popc.b32 %r4, %r2;": lambda x, y: np.array([int(v).bit_count() for v in x]),
    "clz.b32 %r4, %r2;": lambda x, y: np.array([32 - int(v).bit_length() for v in x]),
    "setp.gt.s32 %p1, %r2, %r3; selp.b32 %r4, %r2, %r3, %p1;": lambda x, y: np.maximum(
        signed(x), signed(y)
    ),
    "setp.lt.u32 %p1|%p2, %r2, %r3; selp.u32 %r4, 1, 2, %p2;": lambda x, y: np.where(x < y, 2, 1),
    "mov.u64 %rd5, steps; ld.global.u32 %r4, [%rd5+8];": lambda x, y: np.full_like(x, 100),
    "setp.ge.u32 %p1, %r1, 32; @%p1 bra HIGH; mov.u32 %r4, 1; bra.uni END;"
    " HIGH: mov.u32 %r4, 2; END: add.u32 %r4, %r4, 0;": lambda x, y: 1 + (PLACES >= 32),
    "mov.b32 {%h1, %h2}, %r2; mov.b32 %r4, {%h2, %h1};": lambda x, y: (
        x << np.uint32(16) | x >> np.uint32(16)
    ),
    TO_FLOATS + "fma.rn.f32 %r4, %f2, %f3, %f2;": lambda x, y: (
        real(x).astype(np.float64) * real(y) + real(x)
    ).astype(np.float32),
    TO_FLOATS + "div.rn.f32 %r4, %f2, %f3;": lambda x, y: real(x) / real(y),
    TO_FLOATS + "neg.f32 %f4, %f2; abs.f32 %r4, %f4;": lambda x, y: real(x),
    TO_FLOATS + "sqrt.rn.f32 %f4, %f2; mul.rn.f32 %r4, %f4, 0f40000000;": lambda x, y: (
        np.sqrt(real(x)) * np.float32(2)
    ),
    TO_FLOATS + "cvt.rn.f16.f32 %h1, %f2; cvt.f32.f16 %r4, %h1;": lambda x, y: (
        real(x).astype(np.float16).astype(np.float32)
    ),
    TO_FLOATS + "cvt.rzi.s32.f32 %r4, %f2;": lambda x, y: real(x).astype(np.int32),
    TO_FLOATS + "setp.geu.f32 %p1, %f2, %f3; selp.b32 %r4, %f2, %f3, %p1;": lambda x, y: np.maximum(
        real(x), real(y)
    ),
}


@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_instructions_mean_on_the_host_what_they_mean_on_a_device(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    nbytes = 4 * NUM_THREADS
    body = [f"{{ {text} st.global.u32 [%rd3+{nbytes * i}], %r4; }}" for i, text in enumerate(CASES)]
    source, target, library = (tmp_path / name for name in ("k.ptx", "k.cpp", "k.so"))
    source.write_text("\n".join([HEAD, *body, "ret;\n}\n"]))
    subprocess.run([sys.executable, EMULATION / "ptx_to_cpp.py", source, target], check=True)
    target.write_text(target.read_text() + HOST)
    subprocess.run([str(COMPILER), *FLAGS, f"-I{EMULATION}", target, "-o", library], check=True)
    x, y = (rng.integers(1, 2**32, NUM_THREADS, dtype=np.uint32) for _ in range(2))
    out = np.empty((len(CASES), NUM_THREADS), np.uint32)
    addresses = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)]
    ctypes.CDLL(str(library)).run(*addresses, ctypes.c_int(NUM_THREADS))
    for got, (text, function) in zip(out, CASES.items(), strict=True):
        want = function(x, y)
        if want.dtype == np.float32:
            np.testing.assert_array_equal(got.view(np.float32), want, text)
        else:
            np.testing.assert_array_equal(got, want.astype(np.uint32), text)


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(HEAD + "wgmma.fence.sync.aligned; ret;\n}\n")
    words = [sys.executable, EMULATION / "ptx_to_cpp.py", source, tmp_path / "k.cpp"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode and "wgmma.fence.sync.aligned" in result.stderr
