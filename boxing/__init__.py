"""Boxing: the way from one layout of a global tensor to another. To users: `flow.boxing.nccl` and
`enable_fusion`.

`python -m oneflow.boxing --help` shows how a change of layout is planned.
"""

from __future__ import annotations

from oneflow.boxing import nccl as nccl
from oneflow.boxing.settings import as_bool, change
from oneflow.core.spelling import also_called


@also_called(val="enabled")
def enable_fusion(enabled: bool = True) -> None:
    """Whether moves of several tensors between the same ranks share an actor (default: yes).

    False overrules `flow.boxing.nccl.allow_fuse_*`. Process-wide, for later compiles. Raises
    TypeError.
    """
    change(fusion=as_bool(enabled, "enable_fusion"))
