from __future__ import annotations

import pytest

from oneflow.one_embedding.store.pages import PAGE_NBYTES, zeros


@pytest.mark.parametrize("nbytes", [1, 1 << 17, PAGE_NBYTES - 1, PAGE_NBYTES, 3 * PAGE_NBYTES + 5])
def test_zeros_are_large_pages_and_no_byte_more(nbytes: int) -> None:
    found = zeros(nbytes)
    assert found.shape == (nbytes,) and not found.any()
    assert nbytes < PAGE_NBYTES or found.ctypes.data % PAGE_NBYTES == 0
    found[[0, -1]] = 7
    assert found[0] == found[-1] == 7
