"""`torch.return_types`: the classes of results with names."""

from __future__ import annotations

from oneflow.functional import pointwise, reduction, sort_and_search, statistics
from oneflow.functional.linalg import matrices, packed_factors

max, min = reduction.max_result, reduction.min_result
sort, topk = sort_and_search.sort_result, sort_and_search.topk_result
mode, median = sort_and_search.mode_result, sort_and_search.median_result
kthvalue = nanmedian = median
aminmax, cummax, cummin = (
    statistics.aminmax_result,
    statistics.cummax_result,
    statistics.cummin_result,
)
frexp = pointwise.frexp_result
linalg_slogdet = slogdet = matrices.slogdet_result
linalg_qr = qr = matrices.qr_result
linalg_eigh, linalg_eig = matrices.eigh_result, matrices.eig_result
linalg_svd, svd = matrices.svd_result, matrices.svd_of_result
linalg_inv_ex, linalg_cholesky_ex = matrices.inv_ex_result, matrices.cholesky_ex_result
linalg_solve_ex, linalg_lstsq = matrices.solve_ex_result, matrices.lstsq_result
triangular_solve = matrices.triangular_result
linalg_lu, linalg_lu_factor = packed_factors.lu_result, packed_factors.lu_factor_result
linalg_lu_factor_ex = packed_factors.lu_factor_ex_result
linalg_ldl_factor, linalg_ldl_factor_ex = (
    packed_factors.ldl_factor_result,
    packed_factors.ldl_factor_ex_result,
)
geqrf = packed_factors.geqrf_result

all_return_types = [kind for kind in dict(globals()).values() if hasattr(kind, "_fields")]
