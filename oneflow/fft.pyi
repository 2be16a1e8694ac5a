"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.functional.fft import Dims
from oneflow.functional.fft import fft as fft
from oneflow.functional.fft import fft2 as fft2
from oneflow.functional.fft import fftfreq as fftfreq
from oneflow.functional.fft import fftn as fftn
from oneflow.functional.fft import hfft as hfft
from oneflow.functional.fft import hfft2 as hfft2
from oneflow.functional.fft import hfftn as hfftn
from oneflow.functional.fft import ifft as ifft
from oneflow.functional.fft import ifft2 as ifft2
from oneflow.functional.fft import ifftn as ifftn
from oneflow.functional.fft import ihfft as ihfft
from oneflow.functional.fft import ihfft2 as ihfft2
from oneflow.functional.fft import ihfftn as ihfftn
from oneflow.functional.fft import irfft as irfft
from oneflow.functional.fft import irfft2 as irfft2
from oneflow.functional.fft import irfftn as irfftn
from oneflow.functional.fft import rfft as rfft
from oneflow.functional.fft import rfft2 as rfft2
from oneflow.functional.fft import rfftfreq as rfftfreq
from oneflow.functional.fft import rfftn as rfftn
from oneflow.tensor.tensor import Tensor

def fftshift(input: Tensor, dim: Dims = ..., *, axis: Dims = ...) -> Tensor: ...
def ifftshift(input: Tensor, dim: Dims = ..., *, axis: Dims = ...) -> Tensor: ...
