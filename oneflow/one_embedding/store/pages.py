"""Memory for what is touched at random: in large pages, which save most walks through page tables,
and resident only where it was touched.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

PAGE_NBYTES = 1 << 21
_LEAST_NBYTES = 1 << 23
"""Memory from which a last page that is not full does not count."""


def zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """uint8[nbytes] of zeros."""
    if nbytes < _LEAST_NBYTES:
        return np.zeros(nbytes, np.uint8)
    # The kernel begins a mapping at a large page only if it is of whole ones.
    whole = -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)[:nbytes]
