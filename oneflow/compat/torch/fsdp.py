"""`torch.distributed.fsdp` of old: a wrapper whose module lies in parts (fully_shard.py), and the
names that go with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn

from oneflow import distributed
from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.compat.torch.dtensor import full_tensor
from oneflow.compat.torch.fully_shard import FSDPModule, MixedPrecisionPolicy, fully_shard
from oneflow.core.config import current_config
from oneflow.core.dtype import DType
from oneflow.core.errors import OneFlowError
from oneflow.distributed.process_groups import ProcessGroup
from oneflow.nn.module import Module
from oneflow.nn.module_state import IncompatibleKeys
from oneflow.nn.parameter import Parameter
from oneflow.nn.utils.clip_grad import clip_grad_norm_
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class ShardingStrategy(Enum):
    """The ways to lie in parts. SHARD_GRAD_OP: whole parameters stay until the backward pass.
    HYBRID_SHARD: parts along one axis of a mesh, copies along the other. NO_SHARD is
    DistributedDataParallel's.
    """

    FULL_SHARD = 1
    SHARD_GRAD_OP = 2
    NO_SHARD = 3
    HYBRID_SHARD = 4
    _HYBRID_SHARD_ZERO2 = 5


class BackwardPrefetch(Enum):
    """Orders in which PyTorch gathers parameters: accepted."""

    BACKWARD_PRE = 1
    BACKWARD_POST = 2


class StateDictType(Enum):
    """The tensors of a state dict: whole ones on every rank, or global ones in parts."""

    FULL_STATE_DICT = 1
    LOCAL_STATE_DICT = 2
    SHARDED_STATE_DICT = 3


class MixedPrecision:
    """The dtypes of a wrapped module. param_dtype, reduce_dtype: see `MixedPrecisionPolicy`; the
    others change nothing.
    """

    def __init__(
        self,
        param_dtype: DType | None = None,
        reduce_dtype: DType | None = None,
        buffer_dtype: DType | None = None,
        **_: object,
    ) -> None:
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype
        self.buffer_dtype = buffer_dtype


class CPUOffload:
    """Parts in host memory: where they are on CPU ranks."""

    def __init__(self, offload_params: bool = False) -> None:
        self.offload_params = offload_params


class StateDictConfig:
    """Options of a state dict. rank0_only: the others get an empty one.  offload_to_cpu: changes
    nothing.
    """

    def __init__(self, offload_to_cpu: bool = False, rank0_only: bool = False, **_: object) -> None:
        self.offload_to_cpu, self.rank0_only = offload_to_cpu, rank0_only


OptimStateDictConfig = FullOptimStateDictConfig = ShardedOptimStateDictConfig = StateDictConfig
FullStateDictConfig = ShardedStateDictConfig = LocalStateDictConfig = StateDictConfig

Policy = Callable[..., bool]


class ModuleWrapPolicy:
    """Parts of these classes lie in parts by themselves."""

    def __init__(self, module_classes: Iterable[type]) -> None:
        self._classes = tuple(module_classes)

    def __call__(self, module: Module, recurse: bool, *_: object, **__: object) -> bool:
        return recurse or isinstance(module, self._classes)


class CustomPolicy:
    """Parts for which a function says so lie in parts by themselves."""

    def __init__(self, lambda_fn: Callable[[Module], Any]) -> None:
        self._function = lambda_fn

    def __call__(self, module: Module, recurse: bool, *_: object, **__: object) -> bool:
        return recurse or bool(self._function(module))


def transformer_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Iterable[type] = ()
) -> bool:
    """Return whether a part is to lie in parts by itself: one of the given classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = 100_000_000,
    **_: object,
) -> bool:
    """Return whether a part is to lie in parts by itself: one with so many parameters."""
    return nonwrapped_numel >= min_num_params


def lambda_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[Module], bool]
) -> bool:
    """Return whether a part is to lie in parts by itself: where a function says so."""
    return recurse or lambda_fn(module)


def _or_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, policies: Iterable[Policy]
) -> bool:
    """Return whether any policy takes a part."""
    return any(policy(module, recurse, nonwrapped_numel) for policy in policies)


def enable_wrap(*_: object, **__: object) -> NoReturn:
    """Refuse: a policy, or `fully_shard` of each part, chooses the modules that lie in parts."""
    raise OneFlowError("enable_wrap: give auto_wrap_policy, or call fully_shard on each part")


class FullyShardedDataParallel(Module):
    """A module whose parameters lie in parts over all ranks, under PyTorch's first wrapper.

    sharding_strategy: see there.  auto_wrap_policy: parts that lie in parts by themselves.
    mixed_precision: see there.  device_mesh: of the ranks.  sync_module_states: rank 0's values.
    ignored_modules: stay as they are.  The others change nothing. `module` is the module itself.
    """

    def __init__(
        self,
        module: Module,
        process_group: object = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: object = None,
        auto_wrap_policy: Policy | None = None,
        backward_prefetch: object = None,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[Module] | None = None,
        param_init_fn: object = None,
        device_id: object = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Iterable[Parameter] | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        strategy = sharding_strategy or ShardingStrategy.FULL_SHARD
        if strategy is ShardingStrategy.NO_SHARD:
            raise OneFlowError("FullyShardedDataParallel: NO_SHARD is DistributedDataParallel")
        if sync_module_states:
            with no_grad():
                for x in [*module.parameters(), *module.buffers()]:
                    distributed.broadcast(x, 0)
        given = mixed_precision or MixedPrecision()
        ignored = {p for part in ignored_modules or () for p in part.parameters()}
        keeps = (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2)
        how: dict[str, Any] = {
            "mesh": device_mesh or _mesh_of(process_group),
            "reshard_after_forward": strategy not in keeps,
            "mp_policy": MixedPrecisionPolicy(given.param_dtype, given.reduce_dtype),
            "ignored_params": ignored | set(ignored_states or ()),
        }
        for part in reversed(list(module.modules())[1:]):
            size = sum(p.numel() for p in part.parameters())
            if auto_wrap_policy is not None and auto_wrap_policy(part, False, size):
                fully_shard(part, **how)
        self._fsdp_wrapped_module = fully_shard(module, **how)
        self.training = module.training

    @property
    def module(self) -> Module:
        """The module itself."""
        found = self._modules["_fsdp_wrapped_module"]
        assert found is not None
        return found

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The result of the module."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if not modules:
            raise AttributeError(name)
        found = modules["_fsdp_wrapped_module"]
        return found if name == "_fsdp_wrapped_module" else getattr(found, name)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters under the names that the module has for them."""
        yield from self.module.named_parameters(prefix, recurse, remove_duplicate)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients stay on each rank; the next pass outside exchanges them, too."""
        groups = [m for m in self.modules() if isinstance(m, FSDPModule)]
        for m in groups:
            m.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for m in groups:
                m.set_requires_gradient_sync(True, recurse=False)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients of all ranks together; see `nn.utils.clip_grad_norm_`."""
        return clip_grad_norm_(self.parameters(), max_norm, norm_type)

    def state_dict(
        self,
        destination: OrderedDict[str, Tensor] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> Any:
        """The state of the module, as the innermost `state_dict_type` says; at first whole."""
        found = self.module.state_dict(destination, prefix, keep_vars)
        kind, options = _state.kinds[-1]
        if kind is not StateDictType.FULL_STATE_DICT:
            return found
        whole = {name: _whole(x) for name, x in found.items()}
        return {} if options.rank0_only and current_config().rank else whole

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Take whole tensors, or global ones in parts, into the module."""
        return self.module.load_state_dict(state_dict, strict, assign)

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: StateDictConfig | None = None,
    ) -> Iterator[None]:
        """Inside, state dicts have whole tensors, or global ones in parts."""
        _state.kinds.append((state_dict_type, state_dict_config or StateDictConfig()))
        try:
            yield
        finally:
            _state.kinds.pop()

    @staticmethod
    def set_state_dict_type(
        module: Module,
        state_dict_type: StateDictType,
        state_dict_config: StateDictConfig | None = None,
        optim_state_dict_config: StateDictConfig | None = None,
    ) -> None:
        """Let state dicts have whole tensors, or global ones in parts, from now on."""
        _state.kinds[-1] = state_dict_type, state_dict_config or StateDictConfig()

    @staticmethod
    def fsdp_modules(module: Module, root_only: bool = False) -> list[Module]:
        """The wrappers within a module."""
        return [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]


class _State:
    def __init__(self) -> None:
        self.kinds = [(StateDictType.FULL_STATE_DICT, StateDictConfig())]


_state = _State()


def _whole(x: object) -> object:
    return full_tensor(x).detach() if isinstance(x, Tensor) and x.is_global else x


def _mesh_of(group: object) -> DeviceMesh | None:
    return DeviceMesh("cpu", group.ranks) if isinstance(group, ProcessGroup) else None


def load_sharded_optimizer_state_dict(*_: object, **__: object) -> NoReturn:
    """Refuse: `distributed.checkpoint.load` brings each rank its parts."""
    raise OneFlowError(
        "load_sharded_optimizer_state_dict: load the whole state with distributed.checkpoint.load"
    )


class ShardedGradScaler:
    """PyTorch's scaler for sharded gradients: none is ever made; `flow.amp.GradScaler` scales."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError("ShardedGradScaler: use flow.amp.GradScaler")


class ZeroRedundancyOptimizer:
    """PyTorch's optimizer with sharded states: none is ever made."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError(
            "ZeroRedundancyOptimizer: states follow the layout of parameters; fully_shard(model), "
            "or graph.config.enable_zero()"
        )


DistributedOptimizer = PostLocalSGDOptimizer = ZeroRedundancyOptimizer


class Join:
    """PyTorch's block for ranks with unequal numbers of batches."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError(
            "Join: ranks take equal numbers of steps; give each as many batches, as "
            "DistributedSampler does"
        )


Joinable = JoinHook = Join
