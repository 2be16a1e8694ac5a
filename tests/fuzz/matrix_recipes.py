"""Recipes of functions of matrices: factorizations, solutions, norms, products."""

from __future__ import annotations

import torch

from .drawing import Draft, name_of
from .operands import LAYERS, WIDE, fresh, of
from .recipes import Arguments, like_itself, nothing, recipe

EQUATIONS = (
    ("ij,jk->ik", (3, 2)), ("ij,kj->ik", (2, 3)), ("ij,ij->", (2, 3)), ("ij,ij->j", (2, 3)),
    ("ij,jk", (3, 2)), ("ij,j->i", (3,)), ("i...,...i->...", (3, 2)), ("ij,kl->ikjl", (1, 2)),
)  # fmt: skip


def matrix(
    d: Draft, rows: int | None = None, columns: int | None = None, *, batched: bool = True
) -> str:
    """A well-conditioned matrix, or a batch of them: large on its diagonal."""
    rows = rows or d.pick((1, 2, 2, 3, 4))
    columns = columns or rows
    shape = (*(d.pick(((), (), (2,), (1, 2))) if batched else ()), rows, columns)
    numbers = [
        d.pick((1, 1, -1)) * (4 + i + d.rng.randint(0, 3) / 4)
        if i == j
        else d.rng.randint(-4, 4) / 4
        for _ in range(int(torch.Size(shape[:-2]).numel()))
        for i in range(rows)
        for j in range(columns)
    ]
    return d.leaf(shape, d.pick(WIDE), numbers=tuple(numbers))


def tall(d: Draft) -> str:
    rows = d.pick((2, 3, 4))
    return matrix(d, rows, d.rng.randint(1, rows))


def oblong(d: Draft) -> str:
    return matrix(d, d.pick((1, 2, 3)), d.pick((1, 2, 3)))


def symmetric(d: Draft) -> str:
    x = matrix(d)
    return f"({x} + {x}.mT)"


def positive(d: Draft) -> str:
    """Symmetric, all eigenvalues above 1."""
    x = matrix(d)
    return f"({x} @ {x}.mT)"


def triangle(d: Draft) -> str:
    return f"{matrix(d)}.tril()"


def right_side(d: Draft, x: str) -> list[str]:
    return _side(d, x, d.values[x].shape[:-2] if d.chance(0.7) else ())


def whole_side(d: Draft, x: str) -> list[str]:
    return _side(d, x, d.values[x].shape[:-2])


def _side(d: Draft, x: str, batch: tuple[int, ...]) -> list[str]:
    rows = int(d.values[x].shape[-2])
    return [d.leaf((*batch, rows, d.pick((1, 2, 3))), name_of(d.values[x]), special=False)]


def triangular_side(d: Draft, x: str) -> list[str]:
    return [*right_side(d, x), "upper=False", *d.optional("unitriangular=True")]


def distances(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    other = d.leaf(
        (*map(int, value.shape[:-2]), d.pick((1, 2, 3)), int(value.shape[-1])),
        name_of(value),
        special=False,
    )
    order = d.pick(("1.0", "2.0", "3.0", "float('inf')"))
    return [other, *d.optional(f"p={order}")]


def einsum(d: Draft, x: str) -> list[str]:
    equation, shape = d.pick(EQUATIONS)
    return [f"'{equation}'", x, d.leaf(shape, name_of(d.values[x]), special=False)]


def alone_in_einsum(d: Draft, x: str) -> list[str]:
    equation = d.pick(("'ij->ji'", "'ii->i'", "'ij->'", "'ij->i'", "'...j->...'", "'ii'"))
    return [equation, x]


def product_beside(rank: int) -> Arguments:
    """Two factors of the matrix added to x; rank: of the first."""

    def arguments(d: Draft, x: str) -> list[str]:
        shape = tuple(map(int, d.values[x].shape))
        dtype, inner = name_of(d.values[x]), d.pick((1, 2, 3))
        if rank == 1:  # addr
            pair = ((shape[0],), (shape[1],))
        elif len(shape) == 1:  # addmv
            pair = ((shape[0], inner), (inner,))
        else:
            batch = shape[:1] if len(shape) == 3 else (2,) * (rank - 2)
            pair = ((*batch, shape[-2], inner), (*batch, inner, shape[-1]))
        names = [d.leaf(s, dtype, special=False) for s in pair]
        return [*names, *d.optional("beta=0.5"), *d.optional("alpha=2")]

    return arguments


def vector_for(d: Draft, x: str) -> list[str]:
    return [d.leaf((int(d.values[x].shape[-1]),), name_of(d.values[x]), special=False)]


def triples(d: Draft, x: str) -> list[str]:
    return [
        d.leaf(tuple(d.values[x].shape), name_of(d.values[x]), special=False),
        *d.optional("dim=-1"),
    ]


recipe("inverse linalg.inv pinverse linalg.pinv", nothing, own=matrix)
recipe("det linalg.det slogdet linalg.slogdet", nothing, own=matrix)
recipe("logdet", nothing, own=positive)
recipe("linalg.solve", right_side, own=matrix)
recipe("linalg.solve_triangular", triangular_side, own=triangle)
recipe(
    "triangular_solve",
    lambda d, x: [*right_side(d, x), x],
    own=matrix,
    listed=True,
    result="{}[0]",
)
recipe("linalg.cholesky cholesky", of("", "upper=True"), own=positive)
recipe("cholesky_inverse", nothing, own=triangle)
recipe("linalg.qr qr", nothing, own=tall, result="{}[1].square()")
recipe("linalg.svd svd", nothing, own=oblong, result="{}[1]")
recipe("linalg.svdvals", nothing, own=oblong)
recipe("linalg.eigh", nothing, own=symmetric, result="{}[0]")
recipe("linalg.eigvalsh", nothing, own=symmetric)
recipe("matrix_power linalg.matrix_power", of("0", "1", "2", "3", "-1", "-2"), own=matrix)
recipe("linalg.lstsq", whole_side, own=tall, result="{}[0]")
recipe("linalg.lu_factor", nothing, own=matrix, result="{}[0]")
recipe("linalg.matrix_rank", nothing, own=oblong)
recipe("linalg.cond", of("", "1", "'fro'", "float('inf')", "2"), own=matrix)
recipe(
    "linalg.matrix_norm",
    of("", "'fro'", "1", "-1", "float('inf')", "'nuc'", "2", "keepdim=True"),
    own=oblong,
)
recipe("linalg.vector_norm", of("", "1", "float('inf')", "3", "0.5", "dim=-1", "-1"), own=oblong)
recipe(
    "linalg.norm",
    of("", "1", "2", "'fro'", "dim=-1", "float('inf'), dim=0"),
    own=fresh((2, 3), (3, 3), dtypes=WIDE),
)
recipe("matrix_exp linalg.matrix_exp", nothing, own=fresh((2, 2), (3, 3), (2, 2, 2), dtypes=WIDE))
recipe("linalg.diagonal", of("", "offset=1", "dim1=0, dim2=1"), "moves", own=oblong)
recipe("linalg.vecdot", like_itself, "algebra", own=fresh((2, 3), (3,), dtypes=WIDE))
recipe("linalg.cross cross", triples, "algebra", own=fresh((3,), (2, 3), (4, 3), dtypes=WIDE))
recipe("linalg.vander vander", of("", "N=2", "N=4"), "algebra", own=fresh((2,), (3,), dtypes=WIDE))
recipe("linalg.tensorinv", of("ind=1"), own=lambda d: matrix(d, batched=False))
recipe("einsum", einsum, "algebra", own=fresh((2, 3), dtypes=LAYERS), listed=True)
recipe("einsum", alone_in_einsum, "algebra", own=fresh((3, 3), dtypes=LAYERS), listed=True)
recipe("addmm", product_beside(2), "algebra", own=fresh((2, 3), (3, 1)))
recipe("baddbmm", product_beside(2), "algebra", own=fresh((2, 2, 3), (1, 3, 2)))
recipe("addbmm", product_beside(3), "algebra", own=fresh((2, 3)))
recipe("addmv", product_beside(2), "algebra", own=fresh((2,), (3,)))
recipe("addr", product_beside(1), "algebra", own=fresh((2, 3)))
recipe("mv", vector_for, "algebra", own=fresh((2, 3), (1, 2)))
recipe("cdist", distances, own=fresh((2, 3), (3, 2), (2, 2, 3), dtypes=WIDE))
recipe(
    "pdist", of("", "1.0", "3.0", "float('inf')"), own=fresh((3, 2), (4, 3), (1, 2), dtypes=WIDE)
)
