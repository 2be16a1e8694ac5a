"""Module paths of upstream and PyTorch that are no files here, and where their names are found.

Scripts import names that upstream and PyTorch define in other files than we do: `from
oneflow.nn.modules.batchnorm import BatchNorm2d`. Each such path is a row of PATHS. The module is
made when it is first imported and looks its names up where the row says; `oneflow/surfaces.py`
comes here only for a path under which Python found no file, so a plain import pays nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SCHEDULES = "optim.lr_scheduler"

PATHS: dict[str, str] = {
    "_C._dynamo": "compat.torch.dynamo",
    "_C._dynamo.eval_frame": "compat.torch.dynamo",
    "_C._functorch": "compat.torch.sparse",
    "_C._nn": "_C nn.functional",
    "__config__": "compat.torch.build",
    "_dynamo": "compat.upstream.inner compat.torch.marks compat.torch.dynamo",
    "_dynamo.config": "compat.torch.dynamo_config",
    "_inductor": "compat.torch.dynamo",
    "_inductor.config": "compat.torch.dynamo_config",
    "_oneflow_internal": "compat.upstream.internal .",
    "_oneflow_internal.exception": "Exception=core.errors:OneFlowError",
    "_tensor_str": "tensor.printing",
    "_utils": "compat.upstream.inner compat.torch.inner_utils "
    "ExceptionWrapper=utils.data.worker:Failure",
    "accelerator": "compat.torch.accelerator",
    "amp.autocast_mode": "amp amp.autocasting",
    "ao": "",
    "ao.quantization": "compat.upstream.inner",
    "asyncs.thread": "asyncs",
    "autograd.autograd": "autograd",
    "autograd.autograd_function": "autograd.function",
    "autograd.autograd_mode": "tensor.grad_mode AutoGradMode=tensor.grad_mode:set_grad_enabled",
    "autograd.forward_ad": "compat.torch.forward_ad",
    "autograd.gradcheck": "compat.torch.gradcheck",
    "autograd.profiler": "profiler EventList=profiler:Events",
    "autograd.profiler_util": "profiler EventList=profiler:Events",
    "autograd.variable": "autograd",
    "backends.cpu": "compat.torch.backends_cpu",
    "classes": "compat.torch.libraries",
    "comm.comm_ops": "comm",
    "compiler": "compat.torch.marks compat.torch.compiling",
    "core.record": "",
    "core.record.record_pb2": "protos.record_pb2",
    "cpu": "compat.torch.cpu",
    "cpu.amp": "autocast=compat.torch.amp:cpu_autocast",
    "cuda._utils": "_get_device_index=cuda:_number",
    "cuda.amp": "GradScaler=amp:GradScaler autocast=compat.torch.amp:cuda_autocast",
    "cuda.amp.autocast_mode": "cuda.amp",
    "cuda.nvtx": "profiler range=profiler:record_function",
    "cuda.profiler": "profiler",
    "distributed._composable": "",
    "distributed._composable.fsdp": "compat.torch.fully_shard",
    "distributed._functional_collectives": "compat.torch.functional_collectives",
    "distributed._tensor": "compat.torch.dtensor compat.torch.device_mesh",
    "distributed.algorithms": "",
    "distributed.algorithms._checkpoint": "",
    "distributed.algorithms._checkpoint.checkpoint_wrapper": "compat.torch.activation_checkpoints",
    "distributed.algorithms.ddp_comm_hooks": "",
    "distributed.algorithms.ddp_comm_hooks.default_hooks": "compat.torch.comm_hooks",
    "distributed.algorithms.join": "compat.torch.fsdp",
    "distributed.c10d": "distributed",
    "distributed.checkpoint": "compat.torch.checkpoints",
    "distributed.checkpoint.default_planner": "compat.torch.checkpoints",
    "distributed.checkpoint.filesystem": "compat.torch.checkpoints",
    "distributed.checkpoint.optimizer": "compat.torch.fsdp",
    "distributed.checkpoint.state_dict": "compat.torch.state_dicts",
    "distributed.checkpoint.stateful": "compat.torch.checkpoints",
    "distributed.constants": "distributed",
    "distributed.device_mesh": "compat.torch.device_mesh",
    "distributed.distributed_c10d": "distributed",
    "distributed.elastic": "",
    "distributed.elastic.multiprocessing": "",
    "distributed.elastic.multiprocessing.errors": "compat.torch.elastic",
    "distributed.fsdp": "compat.torch.fully_shard compat.torch.fsdp",
    "distributed.nn": "compat.torch.collectives",
    "distributed.nn.functional": "compat.torch.collectives",
    "distributed.optim": "compat.torch.fsdp",
    "distributed.pipelining": "compat.torch.pipelining",
    "distributed.pipelining.schedules": "compat.torch.pipelining",
    "distributed.pipelining.stage": "compat.torch.pipelining",
    "distributed.tensor": "compat.torch.dtensor",
    "distributed.tensor._utils": "compat.torch.dtensor",
    "distributed.tensor.experimental": "compat.torch.tensor_parallel",
    "distributed.tensor.parallel": "compat.torch.tensor_parallel",
    "distributed.tensor.parallel.style": "compat.torch.tensor_parallel",
    "distributed.tensor.placement_types": "compat.torch.dtensor",
    "distributions.constraint_registry": "compat.torch.constraint_registry",
    "distributions.relaxed_bernoulli": "distributions "
    "LogitRelaxedBernoulli=distributions.one_hot:LogitRelaxedBernoulli",
    "distributions.relaxed_categorical": "distributions "
    "ExpRelaxedCategorical=distributions.one_hot:ExpRelaxedCategorical",
    "export": "compat.torch.sparse",
    "framework": "",
    "framework.args_tree": "compat.upstream.args_tree",
    "framework.balanced_splitter": "compat.upstream.inner",
    "framework.check_point_v2": "io.checkpoint compat.upstream.internal",
    "framework.distribute": "sbp",
    "framework.dtype": "tensor.layout core.dtype .",
    "framework.env_util": "env",
    "framework.generator": "functional.random_state",
    "framework.infer_compiler": "infer_compiler",
    "framework.tensor": "tensor.tensor .",
    "framework.tensor_str": "tensor.printing",
    "framework.type_tensor": ".",
    "framework.unittest": "compat.upstream.testing",
    "func": "compat.torch.func",
    "futures": "compat.torch.futures",
    "fx": "compat.torch.fx",
    "fx.experimental": "",
    "fx.experimental.proxy_tensor": "compat.torch.fx",
    "fx.experimental.symbolic_shapes": "compat.torch.symbolic",
    "hub": "compat.torch.hub",
    "hpu": "compat.torch.absent_device",
    "jit": "compat.torch.jit isinstance=compat.torch.jit:isinstance_",
    "jit.annotations": "compat.torch.jit compat.torch.marks",
    "library": "compat.torch.custom_ops",
    "mlu": "compat.torch.absent_device",
    "mock_torch.dyn_mock_mod": "compat.torch.mock.package",
    "mock_torch.mock_importer": "compat.torch.mock.switching compat.torch.mock.importer",
    "mock_torch.mock_modules": "compat.torch.mock.dummy",
    "mock_torch.mock_utils": "compat.torch.mock.switching",
    "mps": "compat.torch.absent_device",
    "mtia": "compat.torch.absent_device",
    "multiprocessing": "compat.torch.multiprocessing spawn=compat.torch.multiprocessing:spawn",
    "multiprocessing.shared_memory": "SharedMemory=compat.torch.multiprocessing:SharedMemory "
    "ShareableList=compat.torch.multiprocessing:ShareableList",
    "musa": "compat.torch.absent_device",
    "nested": "compat.torch.sparse",
    "nested._internal": "",
    "nested._internal.nested_tensor": "compat.torch.sparse",
    "nn.attention": "compat.torch.attention",
    "nn.attention.flex_attention": "compat.torch.flex_attention",
    "nn.graph.cache": "nn.graph",
    "nn.graph.graph": "nn.graph",
    "nn.graph.graph_block": "nn.graph GraphBlock=nn.graph:Proxy",
    "nn.graph.graph_config": "nn.graph",
    "nn.graph.optimizer": "graph.optimizer",
    "nn.graph.proxy": "nn.graph ProxyModule=nn.graph:Proxy compat.upstream.proxies",
    "nn.graph.util": "compat.upstream.args_tree",
    "nn.image": "Resize=compat.upstream.image_layers:ImageResize "
    "batch_align=compat.upstream.image_layers:ImageBatchAlign "
    "decode=compat.upstream.image_layers:ImageDecode flip=compat.upstream.image_layers:ImageFlip "
    "normalize=compat.upstream.image_layers:ImageNormalize",
    "nn.modules._functions": "nn.modules.normalization",
    "nn.modules.affine_grid": "nn.functional",
    "nn.modules.all_reduce": "nn.modules.ranks",
    "nn.modules.arange": ". arange_op=.:arange",
    "nn.modules.argsort": ". argsort_op=.:argsort",
    "nn.modules.argwhere": ". argwhere_op=.:argwhere",
    "nn.modules.batchnorm": "nn _BatchNorm=nn.modules.normalization:_BatchNorm "
    "_NormBase=nn.modules.normalization:_BatchNorm",
    "nn.modules.broadcast_ops": ". broadcast_like_op=.:broadcast_like",
    "nn.modules.constant": ". ones_op=.:ones zeros_op=.:zeros ones_like_op=.:ones_like "
    "zeros_like_op=.:zeros_like full_op=.:full",
    "nn.modules.dataset": "compat.upstream.readers compat.upstream.image_layers "
    "compat.upstream.file_readers",
    "nn.modules.distributed_partial_fc_sample": "nn.modules.ranks",
    "nn.modules.einsum": ". einsum_op=.:einsum",
    "nn.modules.empty": ". empty_op=.:empty",
    "nn.modules.expand": ". expand_op=.:expand",
    "nn.modules.flatten": "nn .",
    "nn.modules.global_cast": ". local_to_global_op=.:local_to_global "
    "global_to_global_op=.:global_to_global to_global_op=.:to_global to_local_op=.:to_local",
    "nn.modules.grid_sample": "nn.functional",
    "nn.modules.instancenorm": "nn _InstanceNorm=nn.modules.normalization:_InstanceNorm",
    "nn.modules.interpolate": "nn.functional nn Interpolate=nn:Upsample",
    "nn.modules.is_tensor": ". is_tensor_op=.:is_tensor",
    "nn.modules.linspace": ". linspace_op=.:linspace",
    "nn.modules.logspace": ". logspace_op=.:logspace",
    "nn.modules.masked_select": ". masked_select_op=.:masked_select",
    "nn.modules.meshgrid": ". meshgrid_op=.:meshgrid",
    "nn.modules.module": "nn.module nn.forward_hooks "
    "_IncompatibleKeys=nn.module_state:IncompatibleKeys "
    "_EXTRA_STATE_KEY_SUFFIX=nn.module_state:EXTRA_STATE",
    "nn.modules.nonzero": ". nonzero_op=.:nonzero",
    "nn.modules.norm": "linalg .",
    "nn.modules.numel": ". numel_op=.:numel",
    "nn.modules.pixelshuffle": "nn PixelShufflev2=nn:PixelShuffle",
    "nn.modules.reshape": ". reshape_op=.:reshape view_op=.:view",
    "nn.modules.roll": ". roll_op=.:roll",
    "nn.modules.slice": ". slice_op=.:slice slice_update_op=.:slice_update",
    "nn.modules.sparse_softmax_cross_entropy": "nn.functional",
    "nn.modules.tensor_buffer": "compat.upstream.tensor_buffers",
    "nn.modules.trigonometric_ops": ". atan2_op=.:atan2",
    "nn.modules.unique": ". unique_op=.:unique",
    "nn.modules.utils": "compat.upstream.inner",
    "nn.modules.where": ". where_op=.:where",
    "nn.optimizer": "optim",
    "nn.optimizer.swa_utils": "optim.swa_utils",
    "nn.parallel.data_parallel": "nn.modules.ranks",
    "nn.parallel.distributed": "nn.parallel",
    "nn.modules.fused_mlp": "compat.upstream.fused_mlp",
    "nn.qat": "compat.upstream.qat",
    "nn.qat.conv": "compat.upstream.qat",
    "nn.utils.container": "nn.modules.containers",
    "nn.utils.packsequence": "nn.utils.rnn",
    "npu": "compat.torch.absent_device",
    "ops.array_ops": ".",
    "ops.transpose_util": "compat.upstream.inner",
    "ops.util": "",
    "ops.util.initializer_util": "nn.init",
    "profiler.events": "profiler",
    "profiler.profiler": "profiler",
    "profiler.util": "profiler",
    "overrides": "compat.torch.subclasses compat.torch.inner_c",
    "quasirandom": "compat.torch.quasirandom",
    "random": "compat.torch.random",
    "remat": "compat.upstream.remat",
    "return_types": "compat.torch.return_types",
    "serialization": "compat.torch.serialization compat.torch.untyped_storage",
    "sparse": "compat.torch.sparse",
    "special.special_ops": "special",
    "storage": "compat.torch.untyped_storage compat.torch.storage",
    "sysconfig": "compat.upstream.sysconfig",
    "support": "",
    "support.env_var_util": "compat.upstream.inner",
    "testing": "compat.torch.testing",
    "testing._comparison": "compat.torch.testing",
    "test_utils.automated_test_util.global_scope": "test_utils.automated_test_util.autotest",
    "test_utils.automated_test_util.torch_flow_dual_object": "test_utils.automated_test_util "
    "test_utils.automated_test_util.dual_object test_utils.automated_test_util.autotest",
    "test_utils.automated_test_util.util": "broadcast=distributed.objects:broadcast_object",
    "unittest": "compat.upstream.testing",
    "unittest.env": "compat.upstream.testing",
    "utils._python_dispatch": "compat.torch.python_dispatch",
    "utils._pytree": "compat.torch.pytree",
    "utils._triton": "compat.torch.dynamo",
    "utils.benchmark": "compat.torch.benchmark",
    "utils.benchmark.utils": "",
    "utils.benchmark.utils.common": "compat.torch.benchmark",
    "utils.benchmark.utils.compare": "compat.torch.benchmark",
    "utils.benchmark.utils.timer": "compat.torch.benchmark",
    "utils.cpp_extension": "compat.torch.cpp_extension",
    "utils.data._utils": "utils.data.worker utils.data.collate compat.torch.data",
    "utils.data._utils.collate": "utils.data.collate",
    "utils.data._utils.fetch": "utils.data.worker compat.torch.data",
    "utils.data._utils.pin_memory": "utils.data.dataloader",
    "utils.data._utils.signal_handling": "utils.data.worker compat.torch.data",
    "utils.data._utils.worker": "utils.data.worker compat.torch.data "
    "ExceptionWrapper=utils.data.worker:Failure _worker_info=utils.data.worker:_info",
    "utils.data.datapipes.iter": "utils.data.datapipes",
    "utils.data.datapipes.map": "utils.data.datapipes",
    "utils.data.decorator": "utils.data.datapipes",
    "utils.data.graph": "compat.torch.data",
    "utils.data.graph_settings": "compat.torch.data",
    "utils.dlpack": ".",
    "utils.flop_counter": "compat.torch.flop_counter",
    "utils.hooks": "BackwardHook=nn.backward_hooks:BackwardWatch "
    "RemovableHandle=tensor.tensor:RemovableHandle",
    "utils.model_zoo": "compat.torch.model_zoo",
    "utils.tensor.from_or_to_torch_tensor": "utils.tensor",
    "utils.tensorboard": "compat.torch.tensorboard",
    "utils.tensorboard.summary": "compat.torch.tensorboard",
    "utils.tensorboard.writer": "compat.torch.tensorboard",
    "xpu": "compat.torch.absent_device",
}
"""Path below `oneflow` -> the modules in which its names are found, in this order, separated by
blanks: `.` is `oneflow` itself, and `name=module:own` is one name that is called `own` there. A
path that only leads to others has an empty row.
"""

_SIBLINGS = (
    ("_dynamo", "compat.torch.dynamo", "backends eval_frame exc utils"),
    (
        "backends",
        "compat.torch.backends_absent",
        "cusparselt mkl mkldnn nnpack openmp opt_einsum quantized xnnpack",
    ),
    ("cuda", "cuda", "graphs memory random streams type_tensor"),
    (
        "distributed.fsdp",
        "compat.torch.fsdp",
        "api fully_sharded_data_parallel sharded_grad_scaler wrap",
    ),
    (
        "distributions",
        "distributions",
        "bernoulli beta binomial cauchy chi2 continuous_bernoulli dirichlet exp_family "
        "fishersnedecor generalized_pareto geometric gumbel half_cauchy half_normal independent "
        "inverse_gamma kumaraswamy laplace lkj_cholesky log_normal logistic_normal "
        "lowrank_multivariate_normal mixture_same_family multinomial negative_binomial normal "
        "one_hot_categorical pareto poisson studentT transformed_distribution uniform von_mises "
        "weibull wishart",
    ),
    ("fx", "compat.torch.fx", "_symbolic_trace graph graph_module interpreter node proxy"),
    ("multiprocessing", "compat.torch.multiprocessing", "pool queue reductions spawn"),
    (
        "nn.functional",
        "nn.functional",
        "batch_norm ctc_loss deform_conv depend maxpool pad softmax",
    ),
    ("nn.modules", ".", "as_tensor math_ops nms scatter tensordot"),
    (
        "nn.modules",
        "compat.upstream.quantization_layers",
        "fake_quantization min_max_observer moving_average_min_max_observer quantization",
    ),
    ("nn.modules", "nn", "batchnorm_fused container fold upsampling"),
    ("nn.optimizer", "optim", "adadelta adagrad adam adamw lamb lbfgs rmsprop sgd"),
    (
        "nn.optimizer",
        "optim.lr_scheduler",
        "chained_scheduler constant_lr cosine_annealing_lr cosine_annealing_warm_restarts "
        "cosine_decay_lr exponential_lr lambda_lr linear_lr lr_scheduler multiplicative_lr "
        "multistep_lr polynomial_lr reduce_lr_on_plateau sequential_lr step_lr warmup_lr",
    ),
    ("utils.global_view", "utils.global_view", "global_mode global_utils to_global to_local"),
)
"""(a package, a module below `oneflow`, paths below the package whose names are all there)."""

PATHS |= {f"{package}.{name}": home for package, home, names in _SIBLINGS for name in names.split()}


OTHER_PACKAGES: dict[str, str] = {
    "oneflow_onnx": "",
    "oneflow_onnx.oneflow2onnx": "",
    "oneflow_onnx.oneflow2onnx.util": "onnx.converting",
}
"""The same of upstream's packages, for programs that import them where they are not installed."""


def find_spec(name: str) -> ModuleSpec | None:
    """The module of a row, for Python's import; None for any other name."""
    if _row(name) is None:
        return None
    return ModuleSpec(name, _PathLoader(), is_package=True)


def _row(name: str) -> str | None:
    """The row of a module's full name, if it has one."""
    found = OTHER_PACKAGES.get(name)
    return PATHS.get(name.removeprefix("oneflow.")) if found is None else found


def child(module: str, name: str) -> ModuleType | None:
    """The module of a row that stands directly below `module`, imported; None if there is none."""
    path = f"{module}.{name}"
    return importlib.import_module(path) if path.removeprefix("oneflow.") in PATHS else None


class _Path(ModuleType):
    """A module that is a row."""

    def __setattr__(self, name: str, value: object) -> None:
        """Keep a single name of the row when Python has imported the path of the same name below
        it: `multiprocessing.spawn` is a function.
        """
        own: _Lookup | None = self.__dict__.get("__getattr__")
        if isinstance(value, ModuleType) and own is not None and name in own.single:
            value = own.find(name)
        super().__setattr__(name, value)


class _PathLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return _Path(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        row = (_row(module.__name__) or "").split()
        module.__doc__ = "Names that upstream or PyTorch defines under this path; a row of PATHS."
        module.__dict__.update(__getattr__=_Lookup(module, row), __dir__=lambda: _offered(row))


class _Lookup:
    """The `__getattr__` of a module that is a row."""

    def __init__(self, module: ModuleType, row: Sequence[str]) -> None:
        self.module = module
        self.places = [place for place in row if "=" not in place]
        self.single = dict(entry.split("=") for entry in row if "=" in entry)

    def __call__(self, name: str) -> Any:
        if name == "__all__":
            return _offered([*self.places, *(f"{n}=" for n in self.single)])
        if name.startswith("__"):
            raise AttributeError(f"module {self.module.__name__!r} has no attribute {name!r}")
        found = self.find(name)
        setattr(self.module, name, found)
        return found

    def find(self, name: str) -> Any:
        """Return the object of this name in the row or below it. Raises AttributeError."""
        if name in self.single:
            place, own = self.single[name].split(":")
            return getattr(_module(place), own)
        for place in self.places:
            try:
                return getattr(_module(place), name)
            except AttributeError:
                continue
        below = child(self.module.__name__, name)
        if below is None:
            raise AttributeError(f"module {self.module.__name__!r} has no attribute {name!r}")
        return below


def _module(place: str) -> ModuleType:
    return importlib.import_module("oneflow" if place == "." else f"oneflow.{place}")


def _offered(row: Sequence[str]) -> list[str]:
    """The public names of a row, sorted."""
    single = {entry.partition("=")[0] for entry in row if "=" in entry}
    places = [_module(place) for place in row if "=" not in place]
    found = {name for place in places for name in getattr(place, "__all__", dir(place))}
    return sorted(name for name in found | single if not name.startswith("_"))
