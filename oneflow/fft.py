"""`flow.fft`: Fourier transforms; see oneflow/api."""

from oneflow.surfaces import open_module

open_module(__name__, "fft")
