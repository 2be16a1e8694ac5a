"""Products, matrices and Fourier transforms."""

from oneflow.api.row import Row, at, row

ROWS: tuple[Row, ...] = (
    *at(
        "functional.linear_algebra",
        row("matmul", "flow tensor _C linalg"),
        row("mm", "flow tensor"),
        row("bmm", "flow tensor"),
        row("mv", "flow tensor"),
        row("dot", "flow tensor"),
        row("outer ger", "flow tensor"),
        row("vector_outer", "linalg", own="outer", torch=None),
        row("addmm", "flow tensor tensor_"),
        row("baddbmm", "flow tensor tensor_"),
        row("tensordot", "flow"),
        row("cross", "flow tensor linalg"),
        row("einsum", "flow"),
    ),
    *at(
        "functional.fft",
        *(
            row(kind + dims, "fft", widens="cpu")
            for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
            for dims in ("", "2", "n")
        ),
        *(row(name, "fft") for name in ("fftshift", "ifftshift", "fftfreq", "rfftfreq")),
        row("stft", "flow tensor", widens="cpu"),
        row("istft", "flow tensor"),
    ),
    *at(
        "functional.matrices",
        row("inv", "linalg", widens="cpu"),
        row("inverse", "flow tensor", own="inv", widens="cpu"),
        row("det", "flow tensor linalg"),
        row("slogdet", "flow tensor linalg"),
        row("logdet", "flow tensor"),
        row("solve", "linalg"),
        row("solve_triangular", "linalg"),
        row("cholesky", "linalg"),
        row("cholesky", "flow tensor", own="cholesky_method"),
        row("cholesky_solve", "flow"),
        row("cholesky_inverse", "flow tensor"),
        row("qr", "linalg"),
        row("eigh", "linalg"),
        row("eigvalsh", "linalg"),
        row("svd", "linalg"),
        row("svdvals", "linalg"),
        row("pinv", "linalg"),
        row("pinverse", "flow tensor", own="pinv"),
        row("matrix_rank", "linalg"),
        row("matrix_power", "flow tensor linalg"),
        row("lstsq", "linalg"),
        row("diagonal", "linalg"),
        row("vecdot", "linalg"),
    ),
    *at(
        "functional.linalg",
        row("matrix_norm", "linalg"),
        row("norm", "linalg"),
        row("vector_norm", "linalg"),
    ),
)
