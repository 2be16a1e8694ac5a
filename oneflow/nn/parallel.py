"""Data parallel training of an unchanged module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.errors import OneFlowError, PlacementError
from oneflow.distributed.ddp import MEBIBYTE, Bucket, Replicas
from oneflow.distributed.process_groups import group_of
from oneflow.distributed.world import world
from oneflow.nn.module import Module
from oneflow.nn.modules.ranks import DataParallel
from oneflow.surfaces import accept_paths
from oneflow.tensor.tensor import Tensor

__all__ = ["DataParallel", "DistributedDataParallel"]


class Reducer:
    """`ddp.reducer`, which programs prepare for a backward pass that they begin themselves. Here
    each forward pass has prepared it, but one inside of `no_sync()`.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def prepare_for_backward(self, outputs: object) -> None:
        """Return at once. Raises OneFlowError after a forward pass inside of `no_sync()`."""
        if self._replicas.has_own:
            raise OneFlowError(
                "prepare_for_backward: the last forward pass was inside of no_sync(), and its "
                "gradients are averaged with those of the next pass outside; run that pass outside"
            )

    def _rebuild_buckets(self) -> bool:
        """Return False: buckets are chosen once."""
        return False


class DistributedDataParallel(Module):
    """The module in `.module`, whose gradients become the average over the ranks.

    broadcast_parameters: all take rank 0's parameters now.  broadcast_buffers: and its buffers
    before each forward.
    bucket_size, bucket_cap_mb: MiB of gradients sent together (use_bucket=False: each alone).
    process_group: the ranks that average; None: all.
    Parameters must be local and real floats; gradients are averaged in their dtype.
    The other arguments are PyTorch's and change nothing: parameters that a rank did not use count
    as zeros, and a process computes on its own device.

    Attributes that the wrapper lacks are those of the module.
    """

    def __init__(
        self,
        module: Module,
        device_ids: object = None,
        output_device: object = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        process_group: object = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        broadcast_parameters: bool = True,
        bucket_size: float = 10,
        use_bucket: bool = True,
    ) -> None:
        super().__init__()
        group = group_of(process_group, "DistributedDataParallel")
        if group is None:
            raise PlacementError(
                f"DistributedDataParallel: rank {current_config().rank} is not in process_group"
            )
        ranks = tuple(group.ranks)
        nbytes = int((bucket_cap_mb or bucket_size) * MEBIBYTE) if use_bucket else 0
        self._replicas = Replicas(module, nbytes, broadcast_buffers, ranks)
        if broadcast_parameters:
            self._replicas.share(list(module.parameters()))
        self.module = module
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.broadcast_buffers, self.dim = broadcast_buffers, dim
        self.gradient_as_bucket_view, self.require_forward_param_sync = (
            gradient_as_bucket_view,
            True,
        )
        self.device_ids, self.output_device = device_ids, output_device
        self.reducer = Reducer(self._replicas)

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes but those that only this process can use."""
        own = dict(vars(self))
        for name in ("_replicas", "reducer"):
            del own[name]
        return own | self._replicas.layout

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take these attributes. Nothing is sent: each rank keeps the values that it loaded."""
        state = dict(state)
        ranks, nbytes = state.pop("ranks"), state.pop("bucket_nbytes")
        vars(self).update(state)
        here = ranks if set(ranks) <= set(range(world().world_size)) else ()  # else all ranks
        self._replicas = Replicas(self.module, nbytes, self.broadcast_buffers, here)
        self.reducer = Reducer(self._replicas)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether forward passes lead to averages: False inside of `no_sync()`."""
        return self._replicas.averages

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._replicas.averages = value

    def _get_ddp_logging_data(self) -> dict[str, object]:
        """Return an empty dict: nothing is logged."""
        return {}

    def _set_static_graph(self) -> None:
        self.static_graph = True

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self._replicas.forward(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, gradients add up on each rank alone; the next pass outside averages them."""
        return self._replicas.no_sync()

    def register_comm_hook(self, state: object, hook: Callable[[Any, Bucket], Any]) -> None:
        """Let `hook(state, bucket)` exchange gradients from now on: it gets those of this rank, and
        returns a future of the flat tensor that takes their place.
        """
        self._replicas.hook = lambda bucket: _value(hook(state, bucket).wait())

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):
                raise
            return getattr(self.module, name)


def _value(made: Tensor | list[Tensor]) -> Tensor:
    """The tensor of a future, which may hold a list with one."""
    return made[0] if isinstance(made, list) else made


accept_paths(__name__)
