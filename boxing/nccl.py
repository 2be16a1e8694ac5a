"""`flow.boxing.nccl`: how moves between layouts are fused, and where they run.

Named after the library that moves GPU tensors elsewhere; here they hold for plans of every device.
All of them set something process-wide that later compiles read: call them before the first call of
an nn.Graph, alike on all ranks.
"""

from __future__ import annotations

from oneflow.boxing.settings import as_bool, as_count, change, set_fused
from oneflow.core.no_effect import without_effect
from oneflow.core.spelling import also_called


@also_called(val="mbytes", mode="mbytes")
def set_fusion_threshold_mbytes(mbytes: int) -> None:
    """One actor reduces or moves at most so many MiB together; a larger tensor goes alone.

    Without it there is no limit: all gradients of a level are reduced together. Smaller groups
    start earlier, larger ones cost fewer messages. Raises TypeError, ValueError.
    """
    change(max_nbytes=as_count(mbytes, "set_fusion_threshold_mbytes") << 20)


@also_called(val="max_ops_num", mode="max_ops_num")
def set_fusion_max_ops_num(max_ops_num: int) -> None:
    """One actor reduces or moves at most so many tensors together (default: no limit)."""
    change(max_ops=as_count(max_ops_num, "set_fusion_max_ops_num"))


@also_called(val="enabled", mode="enabled")
def allow_fuse_all_reduce(enabled: bool = True) -> None:
    """Whether tensors summed over the same ranks (P to B) share an actor (default: yes)."""
    set_fused("all_reduce", enabled, "allow_fuse_all_reduce")


@also_called(val="enabled", mode="enabled")
def allow_fuse_reduce_scatter(enabled: bool = True) -> None:
    """Whether moves from P to S share an actor (default: yes)."""
    set_fused("reduce_scatter", enabled, "allow_fuse_reduce_scatter")


@also_called(val="enabled", mode="enabled")
def allow_fuse_all_gather(enabled: bool = True) -> None:
    """Whether moves from S to B share an actor (default: yes)."""
    set_fused("all_gather", enabled, "allow_fuse_all_gather")


@also_called(val="enabled", mode="enabled")
def allow_fuse_reduce(enabled: bool = True) -> None:
    """Whether moves of partial sums to one rank share an actor (default: yes)."""
    set_fused("reduce", enabled, "allow_fuse_reduce")


@also_called(val="enabled", mode="enabled")
def allow_fuse_broadcast(enabled: bool = True) -> None:
    """Whether moves from one rank to several share an actor (default: yes)."""
    set_fused("broadcast", enabled, "allow_fuse_broadcast")


@also_called(val="enabled", mode="enabled")
def allow_fuse_mixed_ops(enabled: bool = True) -> None:
    """Whether moves of different kinds share an actor (default: yes).

    All_reduces, which run over the bytes of whole registers, never share one with other kinds.
    """
    change(mixed=as_bool(enabled, "allow_fuse_mixed_ops"))


@also_called(val="enabled", mode="enabled")
def enable_use_compute_stream(enabled: bool = True) -> None:
    """Runs the GPU collectives of eager global tensors, and the all_reduces that graphs leave to
    them, on the stream of the kernels (default: on a stream of their own, ordered with it by
    events).

    Other moves in plans are not concerned: their actors read peers' registers with kernels.
    """
    change(use_compute_stream=as_bool(enabled, "enable_use_compute_stream"))


@also_called(val="enabled", mode="enabled")
def enable_all_reduce_in_graphs(enabled: bool = True) -> None:
    """Whether a graph's all_reduces are calls of the collectives that eager code uses.

    Default: on GPUs where all ranks of the world can use NCCL (not run on a GPU yet). On the CPU
    ranks that read each other's registers are faster. All_reduces of single micro-batches, and
    those whose groups of ranks overlap others', stay as they are.
    """
    change(all_reduce_in_graphs=as_bool(enabled, "enable_all_reduce_in_graphs"))


@also_called(val="enabled", mode="enabled")
def enable_use_buffer_to_fuse_all_reduce(enabled: bool = True) -> None:
    """Checked and kept, without effect: tensors that are summed together lie side by side in the
    register that their producer writes, so they are one buffer already and nothing is copied.
    """
    change(use_buffer=as_bool(enabled, "enable_use_buffer_to_fuse_all_reduce"))
    if not enabled:
        reason = "tensors that are summed together lie in one buffer already"
        without_effect("boxing.nccl.enable_use_buffer_to_fuse_all_reduce(False)", reason)


@also_called(val="num")
def set_stream_num(num: int) -> None:
    """Checked and kept, without effect: a rank has one stream for collectives, since all ranks
    must start them in one order.
    """
    change(stream_num=as_count(num, "set_stream_num"))
    if num > 1:
        without_effect("boxing.nccl.set_stream_num", "a rank has one stream for collectives")


@also_called(val="enabled", mode="enabled")
def enable_all_to_all(enabled: bool = True) -> None:
    """Checked and kept, without effect: a move from S(i) to S(j) is always an all_to_all, which
    moves the fewest bytes.
    """
    change(all_to_all=as_bool(enabled, "enable_all_to_all"))
    if not enabled:
        reason = "a move from S(i) to S(j) is always an all_to_all"
        without_effect("boxing.nccl.enable_all_to_all(False)", reason)


@also_called(val="disabled", mode="disabled")
def disable_group_boxing_by_dst_parallel(disabled: bool = False) -> None:
    """Checked and kept, without effect: readers that want a value laid out alike always share one
    move.
    """
    change(group_by_dst=not as_bool(disabled, "disable_group_boxing_by_dst_parallel"))
    if disabled:
        reason = "readers that want a value laid out alike always share one move"
        without_effect("boxing.nccl.disable_group_boxing_by_dst_parallel", reason)
