"""Ops that have no form in ONNX, each with the reason and a way out."""

from __future__ import annotations

_COMPLEX = (
    "has complex elements, for which ONNX has no operators; compute with real and imaginary parts"
)
_SERIES = "is a series that ONNX has no operator for; compute it outside of the exported model"
_FACTORS = "is a factorization of matrices, for which ONNX has no operator"
_EVAL = "draws random numbers; call model.eval() before the export, or give the numbers as an input"
_TABLE = "reads a table of OneEmbedding, whose rows lie outside of the graph; look rows up before"
_RANKS = "moves rows between ranks"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("conj", "real", "imag", "complex", "complex_abs", "complex_angle", "view_as_real",
         "view_as_complex", "fft_c2c", "fft_r2c", "fft_c2r"), _COMPLEX,
    ),
    **dict.fromkeys(
        ("i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
         "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
         "scaled_modified_bessel_k1", "airy_ai", "gammainc", "polynomial", "standard_gamma_grad"),
        _SERIES,
    ),
    **dict.fromkeys(
        ("inv", "solve", "slogdet", "cholesky", "cholesky_ex", "qr", "eigh", "eig", "eigvals",
         "svd", "pinv", "lu_factor", "ldl_factor", "ldl_solve", "geqrf", "pivots_to_order",
         "matrix_exp"), _FACTORS,
    ),
    **dict.fromkeys(
        ("dropout", "fused_random", "standard_gamma", "poisson", "randperm"), _EVAL
    ),
    **dict.fromkeys(
        ("one_embedding_fused_lookup", "one_embedding_fused_lookup_grad", "one_embedding_update",
         "one_embedding_unique", "one_embedding_recall", "one_embedding_lookup",
         "one_embedding_gather", "one_embedding_sums", "one_embedding_keep",
         "one_embedding_prefetch"), _TABLE,
    ),
    **dict.fromkeys(("exchange_rows", "pack_rows"), _RANKS),
    "ctc_loss": "is a recursion over time, for which ONNX has no operator; export the model "
    "without its loss",
    "ctc_loss_grad": "is a recursion over time, for which ONNX has no operator",
    "roi_align_grad": "adds up gradients of pixels that the boxes choose; export the forward pass",
    "paged_attention": "writes to a cache in blocks; export the model without a cache",
    "product": "is made of several ops when a plan is bound to a GPU; export the graph itself",
    "recurrent_grad": "goes back over time step by step; export the forward pass",
    "frexp": "reads the bits of floats, which ONNX does not show",
}  # fmt: skip
