"""Recipes of losses, with targets that they take."""

from __future__ import annotations

from .drawing import Draft, name_of
from .operands import WIDE, fresh, reduced
from .recipes import recipe


def probabilities(d: Draft) -> str:
    return f"{d.leaf(d.shape(), d.pick(WIDE), special=False)}.sigmoid()"


def same_leaf(d: Draft, x: str, numbers: tuple[float, ...] | None = None) -> str:
    value = d.values[x]
    size = int(value.numel())
    chosen = tuple(d.pick(numbers) for _ in range(size)) if numbers else None
    return d.leaf(tuple(value.shape), name_of(value), numbers=chosen, special=False, grad=False)


def coin(d: Draft, x: str) -> list[str]:
    weight = [f"weight={same_leaf(d, x)}"] if d.chance(0.3) else []
    return [same_leaf(d, x, (0.0, 1.0, 0.25)), *weight, *reduced(d)]


def coin_of_logits(d: Draft, x: str) -> list[str]:
    weight = [f"pos_weight={same_leaf(d, x, (0.5, 2.0))}"] if d.chance(0.4) else []
    return [*coin(d, x), *weight]


def signs(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x, (1.0, -1.0)), *reduced(d)]


def gaussian(d: Draft, x: str) -> list[str]:
    return [
        same_leaf(d, x),
        same_leaf(d, x, (0.5, 1.0, 2.0)),
        *d.optional("full=True"),
        *reduced(d),
    ]


def ranking(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x), same_leaf(d, x, (1.0, -1.0)), *d.optional("margin=0.5"), *reduced(d)]


def triplet(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x), same_leaf(d, x), *d.optional("swap=True"), *reduced(d)]


def cosine_target(d: Draft, x: str) -> list[str]:
    rows = int(d.values[x].shape[0])
    target = d.leaf((rows,), "int64", numbers=tuple(d.pick((1, -1)) for _ in range(rows)))
    return [same_leaf(d, x), target, *reduced(d)]


def classes(d: Draft, x: str) -> list[str]:
    rows, count = map(int, d.values[x].shape)
    return [
        d.leaf((rows,), "int64", numbers=tuple(d.rng.randint(0, count - 1) for _ in range(rows))),
        *reduced(d),
    ]


def weighted_classes(d: Draft, x: str) -> list[str]:
    found = classes(d, x)
    if d.chance(0.3):
        found[0] = f"{same_leaf(d, x)}.softmax(1)"
    weights = tuple(d.pick((0.5, 1.0, 2.0)) for _ in range(int(d.values[x].shape[1])))
    weight = d.leaf((len(weights),), name_of(d.values[x]), numbers=weights, grad=False)
    return [*found, *d.optional(f"weight={weight}"), *d.optional("label_smoothing=0.25")]


def many_labels(d: Draft, x: str) -> list[str]:
    return [same_leaf(d, x, (0.0, 1.0)), *reduced(d)]


def listed_labels(d: Draft, x: str) -> list[str]:
    rows, count = map(int, d.values[x].shape)
    numbers = tuple(
        n for _ in range(rows) for n in (d.rng.randint(0, count - 1), *(-1,) * (count - 1))
    )
    return [d.leaf((rows, count), "int64", numbers=numbers), *reduced(d)]


recipe("binary_cross_entropy", coin, own=probabilities)
recipe("binary_cross_entropy_with_logits", coin_of_logits, own=fresh((3,), (2, 3)))
recipe(
    "hinge_embedding_loss soft_margin_loss", signs, "jumps", own=fresh((3,), (2, 3), dtypes=WIDE)
)
recipe("gaussian_nll_loss", gaussian, own=fresh((3,), (2, 3), dtypes=WIDE))
recipe("margin_ranking_loss", ranking, "jumps", own=fresh((3,), (2, 3), dtypes=WIDE))
recipe("triplet_margin_loss", triplet, own=fresh((2, 3), (3, 2), dtypes=WIDE))
recipe("cosine_embedding_loss", cosine_target, own=fresh((2, 3), (3, 2), dtypes=WIDE))
recipe("multi_margin_loss", classes, "jumps", own=fresh((2, 3), (3, 4), dtypes=WIDE))
recipe("cross_entropy", weighted_classes, own=fresh((2, 3), (3, 4)))
recipe("multilabel_soft_margin_loss", many_labels, own=fresh((2, 3), (3, 4), dtypes=WIDE))
recipe("multilabel_margin_loss", listed_labels, "jumps", own=fresh((2, 3), (3, 4), dtypes=WIDE))
