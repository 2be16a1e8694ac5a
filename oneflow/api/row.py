"""A row of the public table, and how rows are written down.

A row names the function's home (the module that defines it), the surfaces on which users find it,
and its counterpart in PyTorch.

Surfaces:

    flow      oneflow.f              flow_     oneflow.f_, writes into its first argument
    tensor    Tensor.f               tensor_   Tensor.f_, writes into the tensor
    F         oneflow.nn.functional.f
    linalg    oneflow.linalg.f       special   oneflow.special.f       fft       oneflow.fft.f
    nn        oneflow.nn.C           optim     oneflow.optim.C        autograd  oneflow.autograd.f
    _C        oneflow._C.f, the names upstream's own Python code calls
    any other: the module below oneflow that defines the name, such as hub or backends.cudnn

Ways to promote (`promote=`): FLOAT casts integer and bool operands to the default floating-point
dtype before the op runs; INTEGER casts bools to int64; SAME_TYPE brings two operands, of which one
may be a number, to one dtype; TENSORS does so with two tensors, and refuses numbers; KEEP hands the
tensor over as it is, followed by the op's attrs. A row without `promote` names a function that sees
to its own operands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FLOAT: Final = "float"
INTEGER: Final = "integer"
SAME_TYPE: Final = "same_type"
TENSORS: Final = "tensors"
KEEP: Final = "keep"

ALL: Final = "<all names>"
SAME: Final = "<same name>"
"""The counterpart in PyTorch bears the same name on the same surface."""


@dataclass(frozen=True, slots=True)
class Row:
    """One function or object.

    names: the first is the usual one, the others are synonyms on the same surfaces.
    home: the module that defines it.  own: its name there.
    torch: dotted name below `torch` of the counterpart, SAME, or None if PyTorch has none.
    promote: see the top of this file.
    keywords: spellings of keywords that callers may use besides the function's own ones.
    order: positional order of the arguments where users expect another than the function has.
    inplace: does the function that is made of an op take `inplace=`?
    autocast: how a function of several ops runs in a block of `autocast`: the kinds of devices on
        which its tensors are cast to float32, or `lower`, `lower_cuda`: to the block's dtype, on
        all devices or on GPUs, or `widest`: to that of the widest; `outside`: as they are. Its
        ops then run as outside of the block.
    layer: name of the layer that is made of the function, "" for none.
    """

    names: tuple[str, ...]
    home: str
    own: str
    surfaces: tuple[str, ...]
    torch: str | None = SAME
    promote: str | None = None
    keywords: dict[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    inplace: bool = False
    autocast: tuple[str, ...] = ()
    layer: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    names: str
    surfaces: str
    own: str | None
    torch: str | None
    promote: str | None
    keywords: str
    order: str
    inplace: bool
    autocast: str
    layer: str


def row(
    names: str,
    surfaces: str,
    *,
    own: str | None = None,
    torch: str | None = SAME,
    promote: str | None = None,
    keywords: str = "",
    order: str = "",
    inplace: bool = False,
    autocast: str = "",
    layer: str = "",
) -> _Entry:
    """A row as it is written in the table; `at` completes it.

    names, surfaces, order, autocast: separated by blanks.  own: the name in the home; None: the
    first name.
    keywords: "their_name=own_name" pairs, separated by blanks.
    """
    return _Entry(names, surfaces, own, torch, promote, keywords, order, inplace, autocast, layer)


def at(home: str, *entries: _Entry) -> tuple[Row, ...]:
    """The rows of one home module, named without `oneflow.`."""
    return tuple(
        Row(
            names=tuple(e.names.split()),
            home=f"oneflow.{home}",
            own=e.own or e.names.split()[0],
            surfaces=tuple(e.surfaces.split()),
            torch=e.torch,
            promote=e.promote,
            keywords=dict(pair.split("=") for pair in e.keywords.split()),
            order=tuple(e.order.split()),
            inplace=e.inplace,
            autocast=tuple(e.autocast.split()),
            layer=e.layer,
        )
        for e in entries
    )


def classes(home: str, surface: str, names: str, *, unknown: str = "") -> tuple[Row, ...]:
    """One row for each name that `home` defines for a surface.  unknown: those PyTorch lacks."""
    missing = (names if unknown == ALL else unknown).split()
    return at(home, *(row(n, surface, torch=None if n in missing else SAME) for n in names.split()))


def layers_of(rows: tuple[Row, ...], home: str) -> tuple[Row, ...]:
    """A row for each layer that `home` makes of functions."""
    return tuple(
        Row((r.layer,), f"oneflow.{home}", r.layer, ("nn",), None if r.torch is None else SAME)
        for r in rows
        if r.layer
    )
