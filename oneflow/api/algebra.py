"""Products, matrices, Fourier transforms and windows."""

from oneflow.api.row import Row, at, row

ROWS: tuple[Row, ...] = (
    *at(
        "functional.linear_algebra",
        row("matmul", "flow tensor _C linalg"),
        row("mm", "flow tensor"),
        row("bmm", "flow tensor"),
        row("mv", "flow tensor", autocast="lower_cuda widest"),
        row("dot", "flow tensor", autocast="widest"),
        row("outer ger", "flow tensor"),
        row("vector_outer", "linalg", own="outer", torch=None),
        row("addmm", "flow tensor tensor_", autocast="lower"),
        row("baddbmm", "flow tensor tensor_", autocast="lower"),
        row("tensordot", "flow", autocast="lower_cpu widest"),
        row("cross", "flow tensor linalg"),
        row("einsum", "flow"),
    ),
    *at(
        "functional.fft",
        *(
            row(kind + dims, "fft", autocast="cpu")
            for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
            for dims in ("", "2", "n")
        ),
        *(row(name, "fft") for name in ("fftshift", "ifftshift", "fftfreq", "rfftfreq")),
        row("stft", "flow tensor", autocast="cpu"),
        row("istft", "flow tensor"),
    ),
    *at(
        "functional.window_functions",
        *(
            row(f"{name}_window", "flow")
            for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
        ),
        *(
            row(name, "signal.windows")
            for name in (
                "bartlett",
                "blackman",
                "cosine",
                "exponential",
                "gaussian",
                "general_cosine",
                "general_hamming",
                "hamming",
                "hann",
                "kaiser",
                "nuttall",
            )
        ),
    ),
    *at(
        "functional.matrices",
        row("inv", "linalg"),
        row("inverse", "flow tensor", own="inv"),
        row("det", "flow tensor linalg"),
        row("slogdet", "flow tensor linalg"),
        row("logdet", "flow tensor"),
        row("solve", "linalg"),
        row("inv_ex", "linalg"),
        row("solve_ex", "linalg"),
        row("solve_triangular", "linalg"),
        row("triangular_solve", "flow tensor", autocast="cpu cuda"),
        row("cholesky_ex", "linalg"),
        row("cholesky", "linalg"),
        row("cholesky", "flow tensor", own="cholesky_method"),
        row("cholesky_solve", "flow"),
        row("cholesky_inverse", "flow tensor", autocast="cpu cuda"),
        row("qr", "linalg"),
        row("qr", "flow tensor", own="qr_of"),
        row("eig", "linalg"),
        row("eigvals", "linalg"),
        row("eigh", "linalg"),
        row("eigvalsh", "linalg"),
        row("svd", "linalg"),
        row("svd", "flow tensor", own="svd_of"),
        row("svdvals", "linalg"),
        row("pinv", "linalg"),
        row("pinverse", "flow tensor", own="pinv"),
        row("matrix_rank", "linalg", autocast="cpu cuda"),
        row("matrix_power", "flow tensor linalg"),
        row("lstsq", "linalg", autocast="cpu cuda"),
        row("diagonal", "linalg"),
        row("vecdot", "linalg", autocast="lower"),
    ),
    *at(
        "functional.factoring",
        row("lu_factor", "linalg"),
        row("lu_factor_ex", "linalg"),
        row("lu", "linalg"),
        row("lu", "flow tensor", own="lu_packed"),
        row("lu_unpack", "flow"),
        row("lu_solve", "linalg"),
        row("lu_solve", "flow tensor", own="lu_solve_of"),
        row("ldl_factor", "linalg"),
        row("ldl_factor_ex", "linalg"),
        row("ldl_solve", "linalg"),
        row("geqrf", "flow tensor"),
        row("householder_product", "linalg", autocast="cpu cuda"),
        row("orgqr", "flow tensor", own="householder_product", autocast="cpu cuda"),
        row("ormqr", "flow tensor", autocast="cpu cuda"),
        row("matrix_exp", "flow tensor linalg"),
        row("tensorinv", "linalg"),
        row("tensorsolve", "linalg"),
        row("svd_lowrank", "flow"),
        row("pca_lowrank", "flow"),
    ),
    *at(
        "functional.linalg",
        row("cond", "linalg"),
        row("matrix_norm", "linalg", autocast="cuda"),
        row("norm", "linalg", autocast="cuda"),
        row("norm", "flow tensor", own="tensor_norm", autocast="cuda"),
        row("vector_norm", "linalg", autocast="cuda"),
    ),
)
