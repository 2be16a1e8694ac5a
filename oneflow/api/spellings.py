"""Keywords and positional orders of upstream, where our functions are named after PyTorch.

Both libraries' keywords are taken. Where their positional orders differ, upstream's counts; such
functions are on the page docs/DIFFERENCES.md.
"""

from __future__ import annotations

FIRST = ("input", "x", "inputs", "tensors", "self")
"""Spellings of a function's first parameter: each is taken where it has another of them."""

_OF_X = """
    abs cast cat celu column_stack diag diagonal digamma dstack elu erfc flatten frac gumbel_softmax
    hardshrink hardsigmoid hardswish hardtanh hstack interpolate leaky_relu log_softmax logaddexp
    logsigmoid matrix_norm multinomial norm normalize pad prelu relu6 round rrelu selu softmax
    softplus squeeze stack threshold tril triu unbind upsample vector_norm vstack
"""
OF_X = frozenset(_OF_X.split())
"""Functions whose first parameter has a spelling in upstream that is not ours."""

KEYWORDS: dict[str, str] = {
    "batch_gather": "in=input indices=index",
    "bmm": "a=input b=mat2",
    "cholesky_inverse": "input=L",
    "cholesky_solve": "input=B input2=L",
    "convert_oneflow_dtype_to_numpy_dtype": "oneflow_dtype=dtype",
    "copy_": "other=source src=source",
    "cosine_similarity": "x=x1 y=x2",
    "det": "input=A",
    "from_dlpack": "ext_tensor=source dlpack=source",
    "from_numpy": "obj=array ndarray=array x=array",
    "gather_nd": "params=input indices=index",
    "group_norm": "num_channels=",
    "gumbel_softmax": "x=logits input=logits",
    "inv": "input=A",
    "inverse": "input=A",
    "is_tensor": "obj=x",
    "leaky_relu": "alpha=negative_slope",
    "lerp": "input=start",
    "load": "f=path",
    "log_softmax": "_stacklevel=",
    "logaddexp": "y=other",
    "matrix_exp": "input=A",
    "matrix_power": "input=A",
    "normalize": "use_l2_norm_kernel=",
    "pinv": "input=A",
    "pinverse": "input=A",
    "pow": "other=exponent",
    "random_": "from=low to=high",
    "resize_": "memory_format=",
    "resize_as_": "memory_format= the_template=other",
    "save": "f=path_or_buffer pickle_module= pickle_protocol= _use_new_zipfile_serialization=",
    "searchsorted": "input=values",
    "set_default_dtype": "d=dtype",
    "set_default_tensor_type": "t=tensor_type",
    "set_rng_state": "new_state=state",
    "slogdet": "input=A",
    "softmax": "_stacklevel=",
    "softmin": "_stacklevel=",
    "softshrink": "alpha=lambd",
    "split": "tensor=input split_size=split_size_or_sections split_sizes=split_size_or_sections",
    "swapaxes": "axis0=dim0 axis1=dim1",
    "threshold": "threshold_val=threshold",
    "uniform_": "from=a to=b",
    "where": "input=x other=y",
}
"""Name -> "theirs=ours" pairs; nothing behind the sign: accepted, and it changes nothing."""

ORDERS: dict[str, str] = {
    "allclose": "input other atol rtol equal_nan",
    "arange": "start end step dtype",
    "cumprod": "input dim dtype",
    "cumsum": "input dim dtype",
    "empty_like": "input dtype",
    "frombuffer": "buffer dtype count offset requires_grad",
    "full": "size fill_value dtype",
    "full_like": "input fill_value dtype",
    "index_add": "input dim index source alpha",
    "linspace": "start end steps dtype",
    "logspace": "start end steps base dtype",
    "ones_like": "input dtype",
    "quantile": "input q dim keepdim interpolation",
    "repeat_interleave": "input repeats dim output_size",
    "to_global": "input placement sbp grad_sbp check_meta copy",
    "zeros_like": "input dtype",
}
"""Name -> the parameters that may be given by position, in their order."""

ORDERS_OF_PYTORCH: dict[str, str] = {
    "allclose": "input other rtol atol equal_nan",
    "isclose": "input other rtol atol equal_nan",
    **{
        f"max_pool{n}d": "input kernel_size stride padding dilation ceil_mode return_indices"
        for n in (1, 2, 3)
    },
}
"""The same for programs of PyTorch, where no argument shows which order is meant."""

_WRITTEN = """
    abs acos acosh add addbmm addcdiv addcmul addmm addmv addr airy_ai all amax amin aminmax angle
    any arange argmax argmin asin asinh atan atan2 atanh baddbmm bernoulli bessel_j0 bessel_j1
    bessel_y0 bessel_y1 bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor bmm bucketize cat ceil chain_matmul chebyshev_polynomial_t chebyshev_polynomial_u
    chebyshev_polynomial_v chebyshev_polynomial_w cholesky cholesky_ex cholesky_inverse
    cholesky_solve clamp column_stack complex cond conj_physical copysign cos cosh count_nonzero
    cross cummax cummin cumprod cumsum deg2rad det diag diff digamma div dot dstack eig eigh
    eigvals eigvalsh empty empty_like entr eq erf erfc erfcx erfinv exp exp2 expit expm1 eye fft
    fft2 fftfreq fftn float_power floor floor_divide fmax fmin fmod frac frexp full gammainc
    gammaincc gammaln gather gcd ge geqrf gt heaviside hermite_polynomial_h hermite_polynomial_he
    hfft hfft2 hfftn histc histogram householder_product hstack hypot i0 i0e i1 i1e ifft ifft2
    ifftn igamma igammac ihfft ihfft2 ihfftn index_add index_copy index_select inner inv inv_ex
    inverse irfft irfft2 irfftn isneginf isposinf kron kthvalue laguerre_polynomial_l lcm ldexp
    ldl_factor ldl_factor_ex ldl_solve le legendre_polynomial_p lerp lgamma linspace log log10
    log1p log2 log_ndtr log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not
    logical_or logical_xor logit logspace logsumexp lt lu lu_factor lu_factor_ex lu_solve
    lu_unpack masked_select matmul matrix_norm matrix_power matrix_rank max maximum mean median
    min minimum mm mode modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
    modified_bessel_k1 msort mul multi_dot multigammaln multinomial mv mvlgamma nan_to_num nanmean
    nanmedian nanquantile nansum narrow_copy ndtr ndtri ne neg nextafter nonzero norm normal ones
    ones_like orgqr ormqr outer pinv polar polygamma pow prod qr quantile rad2deg rand rand_like
    randint randn randn_like randperm reciprocal remainder renorm rfft rfft2 rfftfreq rfftn round
    rsqrt scaled_modified_bessel_k0 scaled_modified_bessel_k1 scatter scatter_add searchsorted sgn
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w sigmoid sign sin sinc sinh slogdet softmax solve solve_ex
    solve_triangular sort spherical_bessel_j0 sqrt square stack std std_mean sub sum svd svdvals
    take take_along_dim tan tanh tensordot tensorinv tensorsolve topk triangular_solve tril triu
    trunc var var_mean vdot vecdot vector_norm vstack where xlog1py xlogy zeros zeros_like zeta
"""
_EXACT = """
    addbmm addmm addmv all amax amin aminmax any argmax argmin baddbmm bmm bucketize cholesky
    complex cross cummax cummin det diag diff dot eigh eigvalsh gather heaviside histc histogram
    index_add index_copy index_select inner inv isneginf isposinf kthvalue log_softmax logcumsumexp
    masked_select matmul matrix_norm mm mode msort multi_dot multinomial mv nanquantile narrow_copy
    nonzero norm qr quantile renorm scatter scatter_add searchsorted slogdet softmax solve
    solve_triangular sort svd svdvals take take_along_dim tensordot topk tril triu vdot vecdot
    vector_norm where
"""
EXACT = frozenset(_EXACT.split())
"""Those of them whose result is cast to no other dtype."""

APART = frozenset(["cat", "gather", "index_select", "kthvalue", "masked_select", "take"])
"""Those of them whose `out=` may share no memory with their operands."""

WRITTEN = frozenset(_WRITTEN.split())
"""Functions that take `out=`, as PyTorch's do: the tensor, or tensors, that the result goes to."""
