"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from collections.abc import Sequence
from oneflow import _C as _C
from oneflow import amp as amp
from oneflow import asyncs as asyncs
from oneflow import autograd as autograd
from oneflow import backends as backends
from oneflow import boxing as boxing
from oneflow import cluster as cluster
from oneflow import comm as comm
from oneflow import cuda as cuda
from oneflow import data as data
from oneflow import distributed as distributed
from oneflow import distributions as distributions
from oneflow import env as env
from oneflow import fft as fft
from oneflow import graph as graph
from oneflow import hub as hub
from oneflow import io as io
from oneflow import jit as jit
from oneflow import jobs as jobs
from oneflow import linalg as linalg
from oneflow import mock_torch as mock_torch
from oneflow import model as model
from oneflow import multiprocessing as multiprocessing
from oneflow import nn as nn
from oneflow import optim as optim
from oneflow import profiler as profiler
from oneflow import remat as remat
from oneflow import sbp as sbp
from oneflow import special as special
from oneflow import sysconfig as sysconfig
from oneflow import utils as utils
from oneflow import version as version
from oneflow.amp.autocasting import autocast as autocast
from oneflow.amp.autocasting import autocast_decorator as autocast_decorator
from oneflow.amp.autocasting import clear_autocast_cache as clear_autocast_cache
from oneflow.amp.autocasting import get_autocast_cpu_dtype as get_autocast_cpu_dtype
from oneflow.amp.autocasting import get_autocast_gpu_dtype as get_autocast_gpu_dtype
from oneflow.amp.autocasting import is_autocast_cache_enabled as is_autocast_cache_enabled
from oneflow.amp.autocasting import is_autocast_enabled as is_autocast_enabled
from oneflow.amp.autocasting import set_autocast_cache_enabled as set_autocast_cache_enabled
from oneflow.amp.autocasting import set_autocast_cpu_dtype as set_autocast_cpu_dtype
from oneflow.amp.autocasting import set_autocast_enabled as set_autocast_enabled
from oneflow.amp.autocasting import set_autocast_gpu_dtype as set_autocast_gpu_dtype
from oneflow.core.device import Device as device
from oneflow.core.dtype import DType
from oneflow.core.dtype import DType as dtype
from oneflow.core.dtype import DTypeLike
from oneflow.core.dtype import bfloat16 as bfloat16
from oneflow.core.dtype import bool_ as bool
from oneflow.core.dtype import complex128 as cdouble
from oneflow.core.dtype import complex128 as complex128
from oneflow.core.dtype import complex64 as cfloat
from oneflow.core.dtype import complex64 as complex64
from oneflow.core.dtype import float16 as float16
from oneflow.core.dtype import float16 as half
from oneflow.core.dtype import float32 as float
from oneflow.core.dtype import float32 as float32
from oneflow.core.dtype import float64 as double
from oneflow.core.dtype import float64 as float64
from oneflow.core.dtype import float8_e4m3fn as float8_e4m3fn
from oneflow.core.dtype import float8_e5m2 as float8_e5m2
from oneflow.core.dtype import int16 as int16
from oneflow.core.dtype import int16 as short
from oneflow.core.dtype import int32 as int
from oneflow.core.dtype import int32 as int32
from oneflow.core.dtype import int64 as int64
from oneflow.core.dtype import int64 as long
from oneflow.core.dtype import int8 as char
from oneflow.core.dtype import int8 as int8
from oneflow.core.dtype import record as record
from oneflow.core.dtype import tensor_buffer as tensor_buffer
from oneflow.core.dtype import uint8 as uint8
from oneflow.core.operand import DimLike
from oneflow.core.operand import Number
from oneflow.core.operand import TensorLike
from oneflow.core.size import Size as Size
from oneflow.functional.arithmetic import add as add
from oneflow.functional.arithmetic import addcdiv as addcdiv
from oneflow.functional.arithmetic import addcmul as addcmul
from oneflow.functional.arithmetic import atan2 as atan2
from oneflow.functional.arithmetic import div as div
from oneflow.functional.arithmetic import div as divide
from oneflow.functional.arithmetic import div as true_divide
from oneflow.functional.arithmetic import eq as eq
from oneflow.functional.arithmetic import floor_divide as floor_divide
from oneflow.functional.arithmetic import fmod as fmod
from oneflow.functional.arithmetic import ge as ge
from oneflow.functional.arithmetic import ge as greater_equal
from oneflow.functional.arithmetic import gt as greater
from oneflow.functional.arithmetic import gt as gt
from oneflow.functional.arithmetic import isclose as isclose
from oneflow.functional.arithmetic import le as le
from oneflow.functional.arithmetic import le as less_equal
from oneflow.functional.arithmetic import lerp as lerp
from oneflow.functional.arithmetic import lt as less
from oneflow.functional.arithmetic import lt as lt
from oneflow.functional.arithmetic import mul as mul
from oneflow.functional.arithmetic import mul as multiply
from oneflow.functional.arithmetic import ne as ne
from oneflow.functional.arithmetic import ne as not_equal
from oneflow.functional.arithmetic import pow as pow
from oneflow.functional.arithmetic import remainder as remainder
from oneflow.functional.arithmetic import sub as sub
from oneflow.functional.arithmetic import sub as subtract
from oneflow.functional.arranging import addbmm as addbmm
from oneflow.functional.arranging import addmv as addmv
from oneflow.functional.arranging import addr as addr
from oneflow.functional.arranging import alias_copy as alias_copy
from oneflow.functional.arranging import as_strided_copy as as_strided_copy
from oneflow.functional.arranging import block_diag as block_diag
from oneflow.functional.arranging import cartesian_prod as cartesian_prod
from oneflow.functional.arranging import chain_matmul as chain_matmul
from oneflow.functional.arranging import combinations as combinations
from oneflow.functional.arranging import conjugate_transpose as adjoint
from oneflow.functional.arranging import diag_embed_dims as diag_embed
from oneflow.functional.arranging import diagflat as diagflat
from oneflow.functional.arranging import diagonal_copy as diagonal_copy
from oneflow.functional.arranging import dsplit as dsplit
from oneflow.functional.arranging import expand_copy as expand_copy
from oneflow.functional.arranging import fliplr as fliplr
from oneflow.functional.arranging import flipud as flipud
from oneflow.functional.arranging import inner as inner
from oneflow.functional.arranging import kron as kron
from oneflow.functional.arranging import msort as msort
from oneflow.functional.arranging import narrow_copy as narrow_copy
from oneflow.functional.arranging import permute_copy as permute_copy
from oneflow.functional.arranging import ravel as ravel
from oneflow.functional.arranging import rot90 as rot90
from oneflow.functional.arranging import squeeze_copy as squeeze_copy
from oneflow.functional.arranging import t_copy as t_copy
from oneflow.functional.arranging import transpose_copy as transpose_copy
from oneflow.functional.arranging import tril_indices as tril_indices
from oneflow.functional.arranging import triu_indices as triu_indices
from oneflow.functional.arranging import unfold_copy as unfold_copy
from oneflow.functional.arranging import unravel_index as unravel_index
from oneflow.functional.arranging import unsafe_chunk as unsafe_chunk
from oneflow.functional.arranging import unsafe_split as unsafe_split
from oneflow.functional.arranging import unsqueeze_copy as unsqueeze_copy
from oneflow.functional.arranging import vander as vander
from oneflow.functional.arranging import vdot as vdot
from oneflow.functional.arranging import view_copy as view_copy
from oneflow.functional.buffers import gen_tensor_buffer as gen_tensor_buffer
from oneflow.functional.buffers import tensor_buffer_to_list_of_tensors as tensor_buffer_to_list_of_tensors
from oneflow.functional.buffers import tensor_buffer_to_tensor as tensor_buffer_to_tensor
from oneflow.functional.buffers import tensor_to_tensor_buffer as tensor_to_tensor_buffer
from oneflow.functional.complex_numbers import abs as abs
from oneflow.functional.complex_numbers import abs as absolute
from oneflow.functional.complex_numbers import angle as angle
from oneflow.functional.complex_numbers import conj as conj
from oneflow.functional.complex_numbers import conj_physical as conj_physical
from oneflow.functional.complex_numbers import imag as imag
from oneflow.functional.complex_numbers import is_complex as is_complex
from oneflow.functional.complex_numbers import is_conj as is_conj
from oneflow.functional.complex_numbers import is_conj as is_neg
from oneflow.functional.complex_numbers import isreal as isreal
from oneflow.functional.complex_numbers import make as complex
from oneflow.functional.complex_numbers import polar as polar
from oneflow.functional.complex_numbers import real as real
from oneflow.functional.complex_numbers import resolve as resolve_conj
from oneflow.functional.complex_numbers import resolve as resolve_neg
from oneflow.functional.complex_numbers import sgn as sgn
from oneflow.functional.complex_numbers import view_as_complex as view_as_complex
from oneflow.functional.complex_numbers import view_as_real as view_as_real
from oneflow.functional.creation import arange as arange
from oneflow.functional.creation import bernoulli as bernoulli
from oneflow.functional.creation import empty as empty
from oneflow.functional.creation import empty_like as empty_like
from oneflow.functional.creation import eye as eye
from oneflow.functional.creation import full as full
from oneflow.functional.creation import full_like as full_like
from oneflow.functional.creation import hann_window as hann_window
from oneflow.functional.creation import linspace as linspace
from oneflow.functional.creation import logspace as logspace
from oneflow.functional.creation import new_empty as new_empty
from oneflow.functional.creation import new_full as new_full
from oneflow.functional.creation import new_ones as new_ones
from oneflow.functional.creation import new_zeros as new_zeros
from oneflow.functional.creation import normal as normal
from oneflow.functional.creation import ones as ones
from oneflow.functional.creation import ones_like as ones_like
from oneflow.functional.creation import rand as rand
from oneflow.functional.creation import rand_like as rand_like
from oneflow.functional.creation import randint as randint
from oneflow.functional.creation import randint_like as randint_like
from oneflow.functional.creation import randn as randn
from oneflow.functional.creation import randn_like as randn_like
from oneflow.functional.creation import randperm as randperm
from oneflow.functional.creation import zeros as zeros
from oneflow.functional.creation import zeros_like as zeros_like
from oneflow.functional.elementwise import cast as cast
from oneflow.functional.elementwise import clamp as clamp
from oneflow.functional.elementwise import clamp as clip
from oneflow.functional.elementwise import clamp_max as clamp_max
from oneflow.functional.elementwise import clamp_min as clamp_min
from oneflow.functional.elementwise import clone as clone
from oneflow.functional.elementwise import erfc as erfc
from oneflow.functional.elementwise import frac as frac
from oneflow.functional.elementwise import logaddexp as logaddexp
from oneflow.functional.elementwise import logit as logit
from oneflow.functional.elementwise import masked_fill as masked_fill
from oneflow.functional.elementwise import nan_to_num as nan_to_num
from oneflow.functional.elementwise import round as round
from oneflow.functional.elementwise import rsub as rsub
from oneflow.functional.extras import _assert as _assert
from oneflow.functional.extras import contiguous as contiguous
from oneflow.functional.extras import from_dlpack as from_dlpack
from oneflow.functional.extras import get_default_device as get_default_device
from oneflow.functional.extras import is_floating_point as is_floating_point
from oneflow.functional.extras import is_nonzero as is_nonzero
from oneflow.functional.extras import numel as numel
from oneflow.functional.extras import set_default_tensor_type as set_default_tensor_type
from oneflow.functional.extras import set_num_threads as set_num_threads
from oneflow.functional.extras import slice as slice
from oneflow.functional.extras import slice_update as slice_update
from oneflow.functional.extras import to_dlpack as to_dlpack
from oneflow.functional.extras import use_deterministic_algorithms as use_deterministic_algorithms
from oneflow.functional.fft import istft as istft
from oneflow.functional.fft import stft as stft
from oneflow.functional.from_data import as_tensor as as_tensor
from oneflow.functional.from_data import frombuffer as frombuffer
from oneflow.functional.from_data import tensor as tensor
from oneflow.functional.joining import Sections
from oneflow.functional.joining import column_stack as column_stack
from oneflow.functional.joining import dstack as dstack
from oneflow.functional.joining import hsplit as hsplit
from oneflow.functional.joining import hstack as hstack
from oneflow.functional.joining import row_stack as row_stack
from oneflow.functional.joining import vsplit as vsplit
from oneflow.functional.joining import vstack as vstack
from oneflow.functional.legacy import BFloat16Tensor as BFloat16Tensor
from oneflow.functional.legacy import BoolTensor as BoolTensor
from oneflow.functional.legacy import ByteTensor as ByteTensor
from oneflow.functional.legacy import CharTensor as CharTensor
from oneflow.functional.legacy import ComplexDoubleTensor as ComplexDoubleTensor
from oneflow.functional.legacy import ComplexFloatTensor as ComplexFloatTensor
from oneflow.functional.legacy import DoubleTensor as DoubleTensor
from oneflow.functional.legacy import FloatTensor as FloatTensor
from oneflow.functional.legacy import HalfTensor as HalfTensor
from oneflow.functional.legacy import IntTensor as IntTensor
from oneflow.functional.legacy import LongTensor as LongTensor
from oneflow.functional.linear_algebra import addmm as addmm
from oneflow.functional.linear_algebra import baddbmm as baddbmm
from oneflow.functional.linear_algebra import bmm as bmm
from oneflow.functional.linear_algebra import dot as dot
from oneflow.functional.linear_algebra import einsum as einsum
from oneflow.functional.linear_algebra import matmul as matmul
from oneflow.functional.linear_algebra import mm as mm
from oneflow.functional.linear_algebra import mv as mv
from oneflow.functional.linear_algebra import outer as outer
from oneflow.functional.linear_algebra import tensordot as tensordot
from oneflow.functional.matrices import cholesky_inverse as cholesky_inverse
from oneflow.functional.matrices import cholesky_method as cholesky
from oneflow.functional.matrices import cholesky_solve as cholesky_solve
from oneflow.functional.matrices import det as det
from oneflow.functional.matrices import inv as inverse
from oneflow.functional.matrices import logdet as logdet
from oneflow.functional.matrices import matrix_power as matrix_power
from oneflow.functional.matrices import pinv as pinverse
from oneflow.functional.matrices import slogdet as slogdet
from oneflow.functional.methods import as_strided_ as as_strided_
from oneflow.functional.methods import global_to_global as global_to_global
from oneflow.functional.methods import local_to_global as local_to_global
from oneflow.functional.methods import to_global as to_global
from oneflow.functional.methods import to_local as to_local
from oneflow.functional.methods import zero_ as zero_
from oneflow.functional.metrics import roc_auc_score as roc_auc_score
from oneflow.functional.nn_activation import dropout as dropout
from oneflow.functional.nn_layers import pad as pad
from oneflow.functional.nn_more_loss import channel_shuffle as channel_shuffle
from oneflow.functional.nn_more_loss import pixel_unshuffle as pixel_unshuffle
from oneflow.functional.nn_sampling import deform_conv2d as deform_conv2d
from oneflow.functional.nn_sampling import nms as nms
from oneflow.functional.nn_sampling import roi_align as roi_align
from oneflow.functional.nn_windows import adaptive_avg_pool1d as adaptive_avg_pool1d
from oneflow.functional.nn_windows import adaptive_avg_pool2d as adaptive_avg_pool2d
from oneflow.functional.nn_windows import adaptive_avg_pool3d as adaptive_avg_pool3d
from oneflow.functional.pointwise import bitwise_left_shift as bitwise_left_shift
from oneflow.functional.pointwise import bitwise_right_shift as bitwise_right_shift
from oneflow.functional.pointwise import copysign as copysign
from oneflow.functional.pointwise import deg2rad as deg2rad
from oneflow.functional.pointwise import fill as fill
from oneflow.functional.pointwise import float_power as float_power
from oneflow.functional.pointwise import fmax as fmax
from oneflow.functional.pointwise import fmin as fmin
from oneflow.functional.pointwise import frexp as frexp
from oneflow.functional.pointwise import gcd as gcd
from oneflow.functional.pointwise import heaviside as heaviside
from oneflow.functional.pointwise import hypot as hypot
from oneflow.functional.pointwise import is_same_size as is_same_size
from oneflow.functional.pointwise import isin as isin
from oneflow.functional.pointwise import isneginf as isneginf
from oneflow.functional.pointwise import isposinf as isposinf
from oneflow.functional.pointwise import lcm as lcm
from oneflow.functional.pointwise import ldexp as ldexp
from oneflow.functional.pointwise import logaddexp2 as logaddexp2
from oneflow.functional.pointwise import nextafter as nextafter
from oneflow.functional.pointwise import positive as positive
from oneflow.functional.pointwise import rad2deg as rad2deg
from oneflow.functional.positions import diagonal_scatter as diagonal_scatter
from oneflow.functional.positions import index_put as index_put
from oneflow.functional.positions import masked_scatter as masked_scatter
from oneflow.functional.positions import nonzero_static as nonzero_static
from oneflow.functional.positions import put as put
from oneflow.functional.positions import scatter_nd as scatter_nd
from oneflow.functional.positions import take as take
from oneflow.functional.positions import tensor_scatter_nd_update as tensor_scatter_nd_update
from oneflow.functional.promotion import get_default_dtype as get_default_dtype
from oneflow.functional.promotion import set_default_dtype as set_default_dtype
from oneflow.functional.random_state import Generator as Generator
from oneflow.functional.random_state import default_generator as default_generator
from oneflow.functional.random_state import get_rng_state as get_rng_state
from oneflow.functional.random_state import initial_seed as initial_seed
from oneflow.functional.random_state import manual_seed as manual_seed
from oneflow.functional.random_state import seed as seed
from oneflow.functional.random_state import set_rng_state as set_rng_state
from oneflow.functional.reduction import allclose as allclose
from oneflow.functional.reduction import dist as dist
from oneflow.functional.reduction import equal as equal
from oneflow.functional.reduction import trace as trace
from oneflow.functional.searching import argwhere as argwhere
from oneflow.functional.searching import batch_gather as batch_gather
from oneflow.functional.searching import bincount as bincount
from oneflow.functional.searching import gather_nd as gather_nd
from oneflow.functional.searching import in_top_k as in_top_k
from oneflow.functional.searching import masked_select as masked_select
from oneflow.functional.searching import multinomial as multinomial
from oneflow.functional.searching import nonzero as nonzero
from oneflow.functional.searching import searchsorted as searchsorted
from oneflow.functional.searching import where as where
from oneflow.functional.shaping import atleast_1d as atleast_1d
from oneflow.functional.shaping import atleast_2d as atleast_2d
from oneflow.functional.shaping import atleast_3d as atleast_3d
from oneflow.functional.shaping import broadcast_like as broadcast_like
from oneflow.functional.shaping import broadcast_shapes as broadcast_shapes
from oneflow.functional.shaping import broadcast_tensors as broadcast_tensors
from oneflow.functional.shaping import broadcast_to as broadcast_to
from oneflow.functional.shaping import diag as diag
from oneflow.functional.shaping import diagonal as diagonal
from oneflow.functional.shaping import expand as expand
from oneflow.functional.shaping import flatten as flatten
from oneflow.functional.shaping import flip as flip
from oneflow.functional.shaping import meshgrid as meshgrid
from oneflow.functional.shaping import movedim as movedim
from oneflow.functional.shaping import permute as permute
from oneflow.functional.shaping import repeat as repeat
from oneflow.functional.shaping import reshape as reshape
from oneflow.functional.shaping import roll as roll
from oneflow.functional.shaping import swapaxes as swapaxes
from oneflow.functional.shaping import swapdims as swapdims
from oneflow.functional.shaping import t as t
from oneflow.functional.shaping import tile as tile
from oneflow.functional.shaping import transpose as transpose
from oneflow.functional.shaping import tril as tril
from oneflow.functional.shaping import triu as triu
from oneflow.functional.sliding import as_strided as as_strided
from oneflow.functional.sliding import as_strided_scatter as as_strided_scatter
from oneflow.functional.special import digamma as digamma
from oneflow.functional.special import multigammaln as mvlgamma
from oneflow.functional.special import polygamma as polygamma
from oneflow.functional.special import sinc as sinc
from oneflow.functional.special import xlogy as xlogy
from oneflow.functional.statistics import aminmax_result
from oneflow.functional.statistics import bucketize as bucketize
from oneflow.functional.statistics import cdist as cdist
from oneflow.functional.statistics import corrcoef as corrcoef
from oneflow.functional.statistics import cov as cov
from oneflow.functional.statistics import cummax_result
from oneflow.functional.statistics import cummin_result
from oneflow.functional.statistics import histc as histc
from oneflow.functional.statistics import histogram as histogram
from oneflow.functional.statistics import pdist as pdist
from oneflow.functional.storage import UntypedStorage as UntypedStorage
from oneflow.functional.storage import asarray as asarray
from oneflow.functional.storage import view as view
from oneflow.io.checkpoint import load as load
from oneflow.io.checkpoint import save as save
from oneflow.jit import Final as Final
from oneflow.jit import ignore as ignore
from oneflow.jit import interface as interface
from oneflow.jit import is_scripting as is_scripting
from oneflow.jit import is_tracing as is_tracing
from oneflow.jit import script as script
from oneflow.jit import unused as unused
from oneflow.tensor.convert import from_numpy as from_numpy
from oneflow.tensor.formats import channels_last as channels_last
from oneflow.tensor.formats import channels_last_3d as channels_last_3d
from oneflow.tensor.formats import contiguous_format as contiguous_format
from oneflow.tensor.formats import dtypes as dtypes
from oneflow.tensor.formats import layout as layout
from oneflow.tensor.formats import memory_format as memory_format
from oneflow.tensor.formats import preserve_format as preserve_format
from oneflow.tensor.formats import strided as strided
from oneflow.tensor.grad_mode import enable_grad as enable_grad
from oneflow.tensor.grad_mode import inference_mode as inference_mode
from oneflow.tensor.grad_mode import is_grad_enabled as is_grad_enabled
from oneflow.tensor.grad_mode import no_grad as no_grad
from oneflow.tensor.grad_mode import set_grad_enabled as set_grad_enabled
from oneflow.tensor.layout import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from oneflow.tensor.layout import finfo as finfo
from oneflow.tensor.layout import iinfo as iinfo
from oneflow.tensor.layout import placement as placement
from oneflow.tensor.printing import set_printoptions as set_printoptions
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.tensor import Tensor as Tensor
from oneflow.tensor.tensor import is_tensor as is_tensor
from typing import Any
import builtins

__version__: str
def abs_(input: Tensor) -> Tensor: ...
def absolute_(input: Tensor) -> Tensor: ...
def acos(input: Tensor) -> Tensor: ...
def acosh(input: Tensor) -> Tensor: ...
def addmv_(input: Tensor, mat: Tensor, vec: Tensor, *, beta: builtins.float = ..., alpha: builtins.float = ...) -> Tensor: ...
def all(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def amax(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def amin(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def aminmax(input: Tensor, *, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> aminmax_result: ...
def any(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def arccos(input: Tensor) -> Tensor: ...
def arccosh(input: Tensor) -> Tensor: ...
def arcsin(input: Tensor) -> Tensor: ...
def arcsinh(input: Tensor) -> Tensor: ...
def arctan(input: Tensor) -> Tensor: ...
def arctanh(input: Tensor) -> Tensor: ...
def argmax(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def argmin(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def argsort(input: Tensor, dim: builtins.int = ..., descending: builtins.bool = ..., stable: builtins.bool = ..., *, axis: builtins.int = ...) -> Tensor: ...
def asin(input: Tensor) -> Tensor: ...
def asinh(input: Tensor) -> Tensor: ...
def atan(input: Tensor) -> Tensor: ...
def atanh(input: Tensor) -> Tensor: ...
def bitwise_and(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_not(input: Tensor) -> Tensor: ...
def bitwise_or(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
def cat(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def ceil(input: Tensor) -> Tensor: ...
def ceil_(input: Tensor) -> Tensor: ...
def chunk(input: Tensor, chunks: builtins.int, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def clamp_(input: Tensor, min: Number | Tensor | None = ..., max: Number | Tensor | None = ...) -> Tensor: ...
def clamp_max_(input: Tensor, max: Number | Tensor) -> Tensor: ...
def clamp_min_(input: Tensor, min: Number | Tensor) -> Tensor: ...
def clip_(input: Tensor, min: Number | Tensor | None = ..., max: Number | Tensor | None = ...) -> Tensor: ...
def concat(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def conj_physical_(input: Tensor) -> Tensor: ...
def cos(input: Tensor) -> Tensor: ...
def cosh(input: Tensor) -> Tensor: ...
def count_nonzero(input: Tensor, dim: DimLike = ..., *, axis: DimLike = ...) -> Tensor: ...
def cross(input: Tensor, other: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def cummax(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> cummax_result: ...
def cummin(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> cummin_result: ...
def cumprod(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumsum(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumulative_trapezoid(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def diff(input: Tensor, n: builtins.int = ..., dim: builtins.int = ..., prepend: Tensor | None = ..., append: Tensor | None = ..., *, axis: builtins.int = ...) -> Tensor: ...
def div_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
def divide_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
def erf(input: Tensor) -> Tensor: ...
def erfinv(input: Tensor) -> Tensor: ...
def erfinv_(input: Tensor) -> Tensor: ...
def exp(input: Tensor) -> Tensor: ...
def exp2(input: Tensor) -> Tensor: ...
def expm1(input: Tensor) -> Tensor: ...
def floor(input: Tensor) -> Tensor: ...
def floor_(input: Tensor) -> Tensor: ...
def frac_(input: Tensor) -> Tensor: ...
def gather(input: Tensor, dim: builtins.int, index: Tensor, sparse_grad: builtins.bool = ..., *, axis: builtins.int = ...) -> Tensor: ...
def gelu(input: Tensor, approximate: str = 'none') -> Tensor: ...
def gradient(input: Tensor, *, spacing: builtins.float | Tensor | Sequence[builtins.float | Tensor] | None = ..., dim: DimLike = ..., edge_order: builtins.int = ..., axis: DimLike = ...) -> tuple[Tensor, ...]: ...
def greater_(input: TensorLike, other: TensorLike) -> Tensor: ...
def gt_(input: TensorLike, other: TensorLike) -> Tensor: ...
def index_add(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, alpha: Number = ..., axis: builtins.int = ...) -> Tensor: ...
def index_add_(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, alpha: Number = ..., axis: builtins.int = ...) -> Tensor: ...
def index_copy(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def index_fill(input: Tensor, dim: builtins.int, index: Tensor, value: Tensor | Number, *, axis: builtins.int = ...) -> Tensor: ...
def index_put_(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: builtins.bool = ...) -> Tensor: ...
def index_reduce(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def index_select(input: Tensor, dim: builtins.int, index: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def isfinite(input: Tensor) -> Tensor: ...
def isinf(input: Tensor) -> Tensor: ...
def isnan(input: Tensor) -> Tensor: ...
def kthvalue(input: Tensor, k: builtins.int, dim: builtins.int = ..., keepdim: builtins.bool = ..., *, axis: builtins.int = ..., keepdims: builtins.bool = ...) -> Any: ...
def lerp_(start: Tensor, end: Tensor, weight: TensorLike) -> Tensor: ...
def lgamma(input: Tensor) -> Tensor: ...
def log(input: Tensor) -> Tensor: ...
def log10(input: Tensor) -> Tensor: ...
def log1p(input: Tensor) -> Tensor: ...
def log2(input: Tensor) -> Tensor: ...
def log_softmax(input: Tensor, dim: builtins.int | None = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def logcumsumexp(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def logical_and(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_not(input: Tensor) -> Tensor: ...
def logical_or(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
def logsumexp(input: Tensor, dim: DimLike, keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def masked_fill_(input: Tensor, mask: Tensor, value: Number | Tensor) -> Tensor: ...
def max(input: Tensor, dim: builtins.int | Tensor | None = ..., keepdim: builtins.bool = ..., *, other: TensorLike | None = ..., axis: builtins.int | Tensor | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def maximum(input: TensorLike, other: TensorLike) -> Tensor: ...
def mean(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def median(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def min(input: Tensor, dim: builtins.int | Tensor | None = ..., keepdim: builtins.bool = ..., *, other: TensorLike | None = ..., axis: builtins.int | Tensor | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def minimum(input: TensorLike, other: TensorLike) -> Tensor: ...
def mish(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def mode(input: Tensor, dim: builtins.int = ..., keepdim: builtins.bool = ..., *, axis: builtins.int = ..., keepdims: builtins.bool = ...) -> Any: ...
def nanmean(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DType | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def nanmedian(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> object: ...
def nanquantile(input: Tensor, q: builtins.float | Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, interpolation: str = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def nansum(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def narrow(input: Tensor, dim: builtins.int, start: builtins.int, length: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def neg(input: Tensor) -> Tensor: ...
def negative(input: Tensor) -> Tensor: ...
def norm(input: Tensor, p: builtins.float | str | None = ..., dim: DimLike = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, ord: builtins.float | str | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def prod(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def quantile(input: Tensor, q: builtins.float | Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, interpolation: str = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def quick_gelu(input: Tensor) -> Tensor: ...
def reciprocal(input: Tensor) -> Tensor: ...
def relu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def relu_(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def renorm(input: Tensor, p: builtins.float, dim: builtins.int, maxnorm: builtins.float, *, axis: builtins.int = ...) -> Tensor: ...
def repeat_interleave(input: Tensor, repeats: builtins.int | Tensor, dim: builtins.int | None = ..., *, output_size: builtins.int | None = ..., axis: builtins.int | None = ...) -> Tensor: ...
def round_(input: Tensor, *, decimals: builtins.int = ...) -> Tensor: ...
def rsqrt(input: Tensor) -> Tensor: ...
def scatter(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor | Number, *, reduce: str | None = ..., inplace: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def scatter_add(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def scatter_reduce(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def select(input: Tensor, dim: builtins.int, index: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def select_scatter(input: Tensor, src: Tensor, dim: builtins.int, index: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def selu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sigmoid(input: Tensor) -> Tensor: ...
def sign(input: Tensor) -> Tensor: ...
def silu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sin(input: Tensor) -> Tensor: ...
def sin_(input: Tensor) -> Tensor: ...
def sinh(input: Tensor) -> Tensor: ...
def slice_scatter(input: Tensor, src: Tensor, dim: builtins.int = ..., start: builtins.int | None = ..., end: builtins.int | None = ..., step: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def softmax(input: Tensor, dim: builtins.int | None = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def softplus(input: Tensor, beta: builtins.float = 1.0, threshold: builtins.float = 20.0) -> Tensor: ...
def softshrink(input: Tensor, lambd: builtins.float = 0.5, inplace: builtins.bool = False, *, alpha: builtins.float = ...) -> Tensor: ...
def softsign(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sort(input: Tensor, dim: builtins.int = ..., descending: builtins.bool = ..., stable: builtins.bool = ..., *, axis: builtins.int = ...) -> Any: ...
def split(input: Tensor, split_size_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def split_with_sizes(input: Tensor, split_sizes: Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def split_with_sizes_copy(input: Tensor, split_sizes: Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def sqrt(input: Tensor) -> Tensor: ...
def square(input: Tensor) -> Tensor: ...
def square_relu(input: Tensor) -> Tensor: ...
def squeeze(input: Tensor, dim: DimLike = ..., *, axis: DimLike = ...) -> Tensor: ...
def stack(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def std(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool | None = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool | None = ...) -> Tensor: ...
def std_mean(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> tuple[Tensor, Tensor]: ...
def sum(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def take_along_dim(input: Tensor, indices: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def tan(input: Tensor) -> Tensor: ...
def tanh(input: Tensor) -> Tensor: ...
def tensor_split(input: Tensor, indices_or_sections: Sections, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def threshold(input: Tensor, threshold: builtins.float, value: Number, inplace: builtins.bool = False) -> Tensor: ...
def topk(input: Tensor, k: builtins.int, dim: builtins.int | None = ..., largest: builtins.bool = ..., sorted: builtins.bool = ..., *, axis: builtins.int | None = ...) -> Any: ...
def trapezoid(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def trapz(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def true_divide_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
def trunc(input: Tensor) -> Tensor: ...
def unbind(input: Tensor, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def unbind_copy(input: Tensor, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def unflatten(input: Tensor, dim: builtins.int, sizes: Sequence[builtins.int], *, axis: builtins.int = ...) -> Tensor: ...
def unique(input: Tensor, sorted: builtins.bool = ..., return_inverse: builtins.bool = ..., return_counts: builtins.bool = ..., dtype: DTypeLike | None = ..., dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Any: ...
def unique_consecutive(input: Tensor, return_inverse: builtins.bool = ..., return_counts: builtins.bool = ..., dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> object: ...
def unsqueeze(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def var(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool | None = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool | None = ...) -> Tensor: ...
def var_mean(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> tuple[Tensor, Tensor]: ...
