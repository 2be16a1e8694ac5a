"""Entries of PyTorch's tables that are known to be answered otherwise here, each with its reason.

An entry that no longer differs has to be taken off: the test says so.
"""

from __future__ import annotations

NUMBERS = "numbers are taken as operands besides tensors, on either side"
LENIENT = "what PyTorch refuses has a meaning here"
CASTS = "the source is cast to the dtype of the tensor"
UNCHECKED = "the arguments of this function are not checked yet"

_ERRORS = {
    NUMBERS: (
        "__radd__ __rand__ __rmul__ __ror__ __rxor__ atan2 clamp_max clamp_min eq fmod ge gt le "
        "logical_and logical_or logical_xor lt max.binary maximum min.binary minimum ne rsub"
    ),
    LENIENT: "linspace linspace.tensor_overload logspace logspace.tensor_overload mean multinomial",
    CASTS: "scatter scatter_add masked_fill nn.functional.conv1d nn.functional.conv2d "
    "nn.functional.conv3d",
    UNCHECKED: (
        "exponential nn.functional.embedding nn.functional.prelu nn.functional.rrelu "
        "nn.functional.softshrink nn.functional.triplet_margin_loss normal.in_place roll uniform"
    ),
}

_OTHERS = {
    ("operators", "slice", "function"): "flow.slice is OneFlow's: a (start, stop, step) per dim",
    (
        "operators",
        "nn.functional.scaled_dot_product_attention",
        "function",
    ): "is_causal aligns the last row with the last column, as decoding step by step needs",
    ("operators", "norm.nuc", "function"): "there are no singular values",
    ("operators", "linalg.norm", "function"): "gradient of the norm of order 0: zeros, not None",
    (
        "operators",
        "linalg.norm.subgradients_at_zero",
        "function",
    ): "gradient of the norm of order 0: zeros, not None",
    ("operators", "norm", "function"): "gradient of the norm of order 0: zeros, not None",
    (
        "operators",
        "nn.functional.conv_transpose2d",
        "function",
    ): "an output_padding of the dilation, but not below the stride, is refused",
    (
        "operators",
        "nn.functional.conv_transpose3d",
        "function",
    ): "an output_padding of the dilation, but not below the stride, is refused",
    ("operators", "__rpow__", "function"): "tensors of integers have no negative powers",
    ("operators", "scatter", "method"): "there is no reduce='multiply'",
    ("operators", "scatter", "in place"): "there is no reduce='multiply'",
    ("optimizers", "RMSprop", "step"): "eps stands inside the root, as OneFlow has it",
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
