"""Memory for random access: in large pages, which save most walks through page tables,
and resident only where it was touched.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

PAGE_NBYTES = 1 << 21
_LEAST_MAPPED = 1 << 17
"""Memory that goes back to the system at once when nobody needs it: tables of an index are replaced
by larger ones again and again, which an allocator's heap never finds room for in what they left."""


def zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """uint8[nbytes] of zeros: whole large pages, and the rest in small ones, none of which is there
    for nothing."""
    if nbytes < _LEAST_MAPPED:
        return np.zeros(nbytes, np.uint8)
    large = nbytes // PAGE_NBYTES * PAGE_NBYTES
    room = nbytes + PAGE_NBYTES if large else nbytes
    pages = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(pages, np.uint8)
    begin = -whole.ctypes.data % PAGE_NBYTES if large else 0
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE, begin, large)
    return whole[begin : begin + nbytes]
