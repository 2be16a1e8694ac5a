"""Ways to store tensors that PyTorch has beside strided ones: values to compare with."""

from __future__ import annotations

from oneflow.tensor.formats import layout, memory_format


class _TorchLayout(layout):
    """A layout that PyTorch alone has, whose text its users compare."""

    def __repr__(self) -> str:
        return f"torch.{self.name}"


sparse_coo, sparse_csr, sparse_csc = (_TorchLayout(f"sparse_{n}") for n in ("coo", "csr", "csc"))
sparse_bsr, sparse_bsc = _TorchLayout("sparse_bsr"), _TorchLayout("sparse_bsc")
jagged, _mkldnn = _TorchLayout("jagged"), _TorchLayout("_mkldnn")
legacy_contiguous_format = memory_format("contiguous_format")
