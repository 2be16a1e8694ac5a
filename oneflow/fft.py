"""`flow.fft`: Fourier transforms; see oneflow/api.py."""

from oneflow.surfaces import open_module

open_module(__name__, "fft")
