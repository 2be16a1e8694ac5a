"""CuPy's source of `cupy_backends.cuda.api.runtime` -> C++, for a module that links with libcudart
dynamically. Run in the root of CuPy's source:

    python runtime_module.py runtime.cpp
"""

from __future__ import annotations

import os
import sys

import Cython
from Cython.Compiler import Options
from Cython.Compiler.Main import CompilationOptions, compile

sys.path.insert(0, os.getcwd())
options = CompilationOptions(
    Options.default_options,
    cplus=True,
    language_level=3,
    compile_time_env={
        "CUPY_USE_CUDA_PYTHON": False,
        "CUPY_CUFFT_STATIC": False,
        "CUPY_CYTHON_VERSION": Cython.__version__,
        "CUPY_CUDA_VERSION": 13020,
        "CUPY_HIP_VERSION": 0,
    },
    compiler_directives={
        "binding": False,
        "embedsignature": True,
        "c_api_binop_methods": True,
        "warn.deprecated.IF": False,
        "freethreading_compatible": True,
    },
    output_file=sys.argv[1],
)
source = "cupy_backends/cuda/api/runtime.pyx"
result = compile(source, options, full_module_name="cupy_backends.cuda.api.runtime")
sys.exit(1 if result.num_errors else 0)
