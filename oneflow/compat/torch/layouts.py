"""Ways to store tensors that PyTorch has beside strided ones: values to compare with."""

from __future__ import annotations

from oneflow.tensor.formats import layout, memory_format

sparse_coo, sparse_csr, sparse_csc = (layout(f"sparse_{n}") for n in ("coo", "csr", "csc"))
sparse_bsr, sparse_bsc = layout("sparse_bsr"), layout("sparse_bsc")
jagged = layout("jagged")
_mkldnn = layout("_mkldnn")
legacy_contiguous_format = memory_format("contiguous_format")
