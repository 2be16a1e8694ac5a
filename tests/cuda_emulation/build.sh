#!/bin/bash
# build.sh VENV: the CUDA emulator in VENV/cuda_emulation, for the CuPy that it installs into VENV.
set -euo pipefail
venv=$(cd "${1:?usage: build.sh VENV}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=$venv/bin/python
home=$venv/cuda_emulation
work=$home/build
CXX=${CXX:-g++}
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset LD_LIBRARY_PATH CUDA_PATH CUDA_EMULATION PYTHONPATH

[ "$(uname -m)" = x86_64 ] || { echo "build.sh: x86-64 only" >&2; exit 1; }
for name in $("$python" -m pip list --format=freeze | sed -n 's/^\(cupy[^=]*\)==.*/\1/p'); do
  [ "$name" = cupy-cuda13x ] || { echo "build.sh: $venv has $name; it needs a venv without it" >&2; exit 1; }
done
mkdir -p "$home"/{lib,python,cache/kernels,cache/cupy} "$work"

echo "== CuPy, NVRTC and CUDA's headers"
"$python" -m pip install -q 'cupy-cuda13x==14.2.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*' \
  'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
cuda=$site/nvidia/cu13
version=$("$python" -c 'from importlib.metadata import version; print(version("cupy-cuda13x"))')
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')

echo "== the emulator"
# Built aside and moved: a run under way keeps the library that it has.
"$CXX" -O1 -g -fPIC -shared -std=c++17 -w -mf16c -mfma -fno-omit-frame-pointer -I"$cuda/include" -I"$here" \
  "$here/cuda.cpp" "$here/cublas_lt.cpp" "$here/unsupported.cpp" -o "$work/libfakecuda.so" \
  -Wl,-soname,libfakecuda.so -Wl,--version-script="$here/version.map" -ldl -lpthread
# shellcheck disable=SC2016  # the loader, not the shell, replaces $ORIGIN
"$CXX" -O2 -fPIC -shared -std=c++17 -w -mf16c -mfma -I"$here" "$here/nccl.cpp" -o "$work/libnccl.so.2" \
  -Wl,-soname,libnccl.so.2 -L"$work" -lfakecuda -Wl,-rpath,'$ORIGIN' -lrt
mv "$work/libfakecuda.so" "$work/libnccl.so.2" "$home/lib/"
for name in libcuda.so.1 libcudart.so.13 libcublas.so.13 libcublasLt.so.13; do
  ln -sfn libfakecuda.so "$home/lib/$name"
done
# A kernel's translation is kept as long as the translator is the same.
stamp=$(cat "$here"/ptx*.py "$here/emu.h" | sha256sum | cut -c1-16)
[ "$(cat "$home/cache/stamp" 2>/dev/null)" = "$stamp" ] || { rm -rf "$home/cache/kernels"; mkdir "$home/cache/kernels"; }
echo "$stamp" > "$home/cache/stamp"
cp "$here"/ptx*.py "$here/emu.h" "$home/"
# With the flags that kernels are compiled with (cuda.cpp).
"$CXX" -x c++-header -O1 -fPIC -w -std=c++17 -ffp-contract=off -fno-strict-aliasing -mf16c -mfma \
  "$home/emu.h" -o "$home/emu.h.gch"

echo "== CuPy $version's runtime module, linked with the emulator"
if [ "$(cat "$home/python/version" 2>/dev/null)" != "$version$suffix" ]; then
  rm -rf "$home/python"/* "$work/cupy-$version"
  "$python" -m pip install -q --target "$work/cython" --upgrade 'Cython==3.2.4'
  # Without the stub, the source asks for a CUDA toolkit before pip will hand it out.
  CUPY_INSTALL_USE_STUB=1 "$python" -m pip download -q --no-deps --no-binary cupy "cupy==$version" -d "$work"
  tar -xzf "$work/cupy-$version.tar.gz" -C "$work" "cupy-$version/cupy_backends"
  (cd "$work/cupy-$version" && PYTHONPATH=$work/cython "$python" "$here/runtime_module.py" "$work/runtime.cpp") 2> "$work/cython.log" ||
    { cat "$work/cython.log" >&2; exit 1; }
  mkdir -p "$work/include"  # the two names of a header that is in a wheel of its own
  echo '#include <driver_types.h>
extern "C" cudaError_t cudaProfilerStart(); extern "C" cudaError_t cudaProfilerStop();' > "$work/include/cuda_profiler_api.h"
  # shellcheck disable=SC2016  # the loader, not the shell, replaces $ORIGIN
  "$CXX" -O1 -fPIC -shared -std=c++17 -w -DCUPY_CUDA_VERSION=13020 -I"$include" -I"$work/include" -I"$cuda/include" \
    -I"$work/cupy-$version/cupy_backends" -I"$work/cupy-$version/cupy_backends/cuda/api" \
    "$work/runtime.cpp" -o "$work/runtime$suffix" -L"$home/lib" -lfakecuda -Wl,-rpath,'$ORIGIN/../lib'
  mv "$work/runtime$suffix" "$home/python/"
  echo "$version$suffix" > "$home/python/version"
fi
cp "$here/host_sort.py" "$home/python/"
cp "$here/cuda_emulation.py" "$site/"
echo 'import os; os.environ.get("CUDA_EMULATION") and __import__("cuda_emulation").activate()' > "$site/cuda_emulation.pth"

"$here/run.sh" "$venv" python -c 'import cupy; x = cupy.arange(6.0).reshape(2, 3)
assert (x @ x.T).get().tolist() == [[5, 14], [14, 50]] and cupy.argsort(-x).get()[0].tolist() == [2, 1, 0]
print("== it works:", cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())'
cat <<TEXT

Run with the emulated device:
  $here/run.sh $venv python -m pytest -m gpu tests/gpu -q
  EMU_DEVICES=2 $here/run.sh $venv python program.py      two devices
  EMU_MODE=count $here/run.sh $venv python program.py     count, compute nothing
Without run.sh the environment's CuPy is as it was.
TEXT
