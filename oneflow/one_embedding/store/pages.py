"""Memory for what is touched at random: in large pages, which save most walks through page tables,
and resident only where it was touched.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

PAGE_NBYTES = 1 << 21
_LEAST_LARGE = 1 << 23
"""Memory from which a last large page that is not full does not count."""
_LEAST_MAPPED = 1 << 17
"""Memory that goes back to the system at once when nobody needs it: tables of an index are replaced
by larger ones again and again, which an allocator's heap never finds room for in what they left."""


def zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """uint8[nbytes] of zeros."""
    if nbytes < _LEAST_MAPPED:
        return np.zeros(nbytes, np.uint8)
    is_large = nbytes >= _LEAST_LARGE
    if is_large:  # the kernel begins a mapping at a large page only if it is of whole ones
        whole = -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES
    else:
        whole = nbytes
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_large and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)[:nbytes]
