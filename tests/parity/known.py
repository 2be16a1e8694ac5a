"""Entries of PyTorch's tables that are known to be answered otherwise here, each with its reason.

An entry that no longer differs has to be taken off: the test says so.
"""

from __future__ import annotations

NUMBERS = "a number is taken as the first operand, as OneFlow takes it"
WRITTEN = "out= may be resized whatever it is, and an operand made of it is another tensor"
LENIENT = "what PyTorch refuses has a meaning here"

_ERRORS = {
    NUMBERS: (
        "__radd__ __rand__ __rmul__ __ror__ __rxor__ eq fmod ge gt le lt ne "
        "logical_and logical_or logical_xor"
    ),
    WRITTEN: "take",
}

_OTHERS = {
    ("operators", "slice", "function"): "flow.slice is OneFlow's: a (start, stop, step) per dim",
    ("operators", "where", "method"): "of bools alone the first tensor is the condition",
    (
        "operators",
        "nn.functional.ctc_loss",
        "function",
    ): "one gradient in 16,000 is the difference of nearly equal float32 numbers",
    ("operators", "linalg.eigh", "function"): "the signs of eigenvectors are LAPACK's",
    ("operators", "histogramdd", "function"): "edges of bins that do not increase are refused",
    **{
        ("operators", f"special.bessel_j{order}", "function"): "PyTorch has seven digits"
        for order in (0, 1)
    },
    ("operators", "linalg.eig", "function"): "the angles of eigenvectors are LAPACK's",
    (
        "operators",
        "nn.functional.triplet_margin_with_distance_loss",
        "function",
    ): "the samples pass a function of PyTorch",
    **{
        ("operators", "as_strided.partial_views", surface): "the samples are views, ours copies"
        for surface in ("function", "method", "in place")
    },
    **{
        ("operators", entry, "function"): "the number of numbers has the gradient 0, not none"
        for entry in ("norm", "linalg.norm", "linalg.norm.subgradients_at_zero")
    },
    (
        "operators",
        "as_strided_scatter",
        "function",
    ): "PyTorch's gradient of what is overwritten is not 0",
}

KNOWN: dict[tuple[str, str, str], str] = {
    **{
        ("operators", entry, "errors"): reason
        for reason, entries in _ERRORS.items()
        for entry in entries.split()
    },
    **_OTHERS,
}
"""(table, entry, surface) -> the reason."""

LATER: dict[tuple[str, str, str], str] = {
    **{
        ("operators", entry, "errors"): reason
        for reason, entries in (
            (WRITTEN, ("cat", "gather")),
            ("out= is looked at before the step", ("arange",)),
            (LENIENT, ("nn.functional.avg_pool2d", "nn.functional.avg_pool3d")),
        )
        for entry in entries
    },
    **{
        ("operators", entry, surface): "the signs of singular vectors are LAPACK's"
        for entry, surfaces in (("svd", ("function", "method")), ("linalg.svd", ("function",)))
        for surface in surfaces
    },
    **{
        ("operators", entry, "function"): "the triangle that is not read gets no gradient"
        for entry in ("cholesky_inverse", "cholesky_solve")
    },
    **{
        ("operators", entry, "function"): "of no numbers the gradient is empty"
        for entry in ("linalg.householder_product", "ormqr")
    },
    ("operators", "cov", "function"): "the gradient of a weight is 0, PyTorch has its rounding",
    **{
        ("operators", entry, "function"): "the number of numbers has the gradient 0, not none"
        for entry in ("linalg.vector_norm", "masked.norm")
    },
    **{
        ("operators", entry, "function"): "mode nearest gives the grid no gradient, not zeros"
        for entry in ("nn.functional.grid_sample", "grid_sampler_2d")
    },
    (
        "operators",
        "grid_sampler_3d",
        "function",
    ): "one gradient in 79,000 is the difference of nearly equal float32 numbers",
}
"""The same for entries whose first samples agree."""
