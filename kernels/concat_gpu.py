"""Concatenation on a GPU: a launch for some tensors together, in the strides that they lie in."""

from __future__ import annotations

from math import prod

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.concat import concat
from oneflow.kernels.cuda_launch import C_TYPES, cuda_source, flat, long
from oneflow.kernels.registry import kernel

_AT_ONCE, _DIMS = 4, 4  # tensors and dims of a launch

cuda_source(
    "concat_gpu",
    r"""
#define SOURCE(x) const S* x, i64 x##_size, i64 x##_0, i64 x##_1, i64 x##_2, i64 x##_3
#define PLACE(x) (i0 * x##_0 + i1 * x##_1 + i2 * x##_2 + i3 * x##_3)
#define TAKE(x)                                                      \
  if (at < x##_size) {                                               \
    *to = x[PLACE(x) + (at - i_along) * (axis == 0   ? x##_0         \
                                         : axis == 1 ? x##_1         \
                                         : axis == 2 ? x##_2         \
                                                     : x##_3)];      \
    continue;                                                        \
  }                                                                  \
  at -= x##_size;

// Up to four tensors as they lie, one after the other along `axis`. n1, n2, n3: sizes of the part
// of the result that they make.
extern "C" __global__ void concat(S* out, i64 total, i64 axis, i64 n1, i64 n2, i64 n3, i64 out_0,
                                  i64 out_1, i64 out_2, i64 out_3, SOURCE(a), SOURCE(b), SOURCE(c),
                                  SOURCE(d)) {
  FLAT(i, total) {
    i64 i3 = i % n3, rest = i / n3, i2 = rest % n2, i1 = rest / n2 % n1, i0 = rest / n2 / n1;
    i64 i_along = axis == 0 ? i0 : axis == 1 ? i1 : axis == 2 ? i2 : i3, at = i_along;
    S* to = out + PLACE(out);
    TAKE(a)
    TAKE(b)
    TAKE(c)
    TAKE(d)
  }
}
""",
)


@kernel("concat", device="cuda", dtypes=tuple(C_TYPES))
def concat_at_once(xp: ArrayModule, out: Array, *xs: Array, dim: int) -> None:
    if out.ndim > _DIMS:
        concat(xp, out, *xs, dim=dim)
        return
    lead = _DIMS - out.ndim
    out, axis, start = out[(None,) * lead], dim + lead, 0
    for first in range(0, len(xs), _AT_ONCE):
        some = [x[(None,) * lead] for x in xs[first : first + _AT_ONCE]]
        stop = start + sum(x.shape[axis] for x in some)
        part = out[(slice(None),) * axis + (slice(start, stop),)]
        start = stop
        sources: list[object] = []
        for x in [*some, *some[:1] * (_AT_ONCE - len(some))]:
            size = x.shape[axis] if len(sources) < 6 * len(some) else 0
            sources += [x, long(size), *_elements(x)]
        sizes = map(long, (prod(part.shape), axis, *part.shape[1:]))
        flat("concat", part, *sizes, *_elements(part), *sources)


def _elements(x: Array) -> list[object]:
    """Elements to the next along each dim."""
    return [long(s // x.itemsize) for s in x.strides]
