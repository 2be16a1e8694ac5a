"""Module paths of upstream and PyTorch: each is importable, and names are found under it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import oneflow as flow
from oneflow.paths import PATHS

TYPICAL = """
_C                                            matmul
_C._nn                                        gelu
_dynamo                                       allow_in_graph
_oneflow_internal                             cpu_broadcast
_oneflow_internal.exception                   Exception
_utils                                        ExceptionWrapper
amp                                           autocast
amp.autocast_mode                             autocast
amp.grad_scaler                               GradScaler
ao.quantization                               QuantStub
asyncs                                        thread
asyncs.thread                                 Thread
autograd                                      grad
autograd.autograd                             grad
autograd.autograd_function                    Function
autograd.autograd_mode                        no_grad
autograd.functional                           vjp
autograd.graph                                saved_tensors_hooks
autograd.profiler                             record_function
backends                                      cudnn
backends.cuda                                 matmul
backends.cudnn                                benchmark
backends.mps                                  is_available
boxing                                        enable_fusion
boxing.nccl                                   allow_fuse_all_reduce
comm                                          all_reduce
comm.comm_ops                                 all_gather
core.record.record_pb2                        OFRecord
cpu.amp                                       autocast
cuda                                          is_available
cuda._utils                                   _get_device_index
cuda.amp                                      autocast
cuda.amp.autocast_mode                        GradScaler
cuda.random                                   manual_seed
cuda.type_tensor                              FloatTensor
distributed                                   get_rank
distributed.constants                         default_pg_timeout
distributed.fsdp                              FullyShardedDataParallel
distributed.fsdp.fully_sharded_data_parallel  FullyShardedDataParallel
distributions                                 Categorical
distributions.bernoulli                       Bernoulli
distributions.beta                            Beta
distributions.binomial                        Binomial
distributions.categorical                     Categorical
distributions.cauchy                          Cauchy
distributions.chi2                            Chi2
distributions.constraint_registry             biject_to
distributions.constraints                     positive
distributions.continuous_bernoulli            ContinuousBernoulli
distributions.dirichlet                       Dirichlet
distributions.distribution                    Distribution
distributions.exp_family                      ExponentialFamily
distributions.exponential                     Exponential
distributions.fishersnedecor                  FisherSnedecor
distributions.generalized_pareto              GeneralizedPareto
distributions.geometric                       Geometric
distributions.gumbel                          Gumbel
distributions.half_cauchy                     HalfCauchy
distributions.half_normal                     HalfNormal
distributions.independent                     Independent
distributions.inverse_gamma                   InverseGamma
distributions.kl                              kl_divergence
distributions.kumaraswamy                     Kumaraswamy
distributions.laplace                         Laplace
distributions.lkj_cholesky                    LKJCholesky
distributions.log_normal                      LogNormal
distributions.logistic_normal                 LogisticNormal
distributions.lowrank_multivariate_normal     LowRankMultivariateNormal
distributions.mixture_same_family             MixtureSameFamily
distributions.multinomial                     Multinomial
distributions.multivariate_normal             MultivariateNormal
distributions.negative_binomial               NegativeBinomial
distributions.normal                          Normal
distributions.one_hot_categorical             OneHotCategorical
distributions.pareto                          Pareto
distributions.poisson                         Poisson
distributions.relaxed_bernoulli               LogitRelaxedBernoulli
distributions.relaxed_categorical             ExpRelaxedCategorical
distributions.studentT                        StudentT
distributions.transformed_distribution        TransformedDistribution
distributions.transforms                      TanhTransform
distributions.uniform                         Uniform
distributions.von_mises                       VonMises
distributions.weibull                         Weibull
distributions.wishart                         Wishart
env                                           get_rank
framework.args_tree                           ArgsTree
framework.balanced_splitter                   BalancedRanges
framework.check_point_v2                      load
framework.distribute                          split
framework.dtype                               float32
framework.env_util                            get_rank
framework.generator                           Generator
framework.infer_compiler                      compile_from_torch
framework.tensor                              Tensor
framework.tensor_str                          set_printoptions
framework.type_tensor                         FloatTensor
framework.unittest                            TestCase
hub                                           load
jit                                           script
jit.annotations                               Final
linalg                                        norm
mock_torch                                    enable
mock_torch.dyn_mock_mod                       DynamicMockModule
mock_torch.mock_importer                      enable
mock_torch.mock_modules                       DummyModule
mock_torch.mock_utils                         is_enabled
multiprocessing                               spawn
multiprocessing.pool                          Pool
multiprocessing.queue                         SimpleQueue
multiprocessing.reductions                    get_context
multiprocessing.shared_memory                 SharedMemory
multiprocessing.spawn                         start_processes
nn                                            Linear
nn.common_types                               _size_2_t
nn.functional                                 relu
nn.functional.batch_norm                      batch_norm
nn.functional.ctc_loss                        ctc_loss
nn.functional.deform_conv                     deform_conv2d
nn.functional.depend                          depend
nn.functional.maxpool                         max_pool2d
nn.functional.pad                             pad
nn.functional.softmax                         softmax
nn.graph                                      Graph
nn.graph.cache                                Graph
nn.graph.graph                                Graph
nn.graph.graph_block                          GraphModule
nn.graph.graph_config                         GraphConfig
nn.graph.optimizer                            GraphOptimizer
nn.graph.proxy                                ProxyModule
nn.graph.util                                 ArgsTree
nn.image                                      Resize
nn.init                                       ones_
nn.modules                                    Linear
nn.modules._functions                         BatchNorm2d
nn.modules.activation                         ReLU
nn.modules.affine_grid                        affine_grid
nn.modules.all_reduce                         AllReduce
nn.modules.distributed_partial_fc_sample      DistributedPariticalFCSample
nn.parallel.data_parallel                     DataParallel
nn.modules.arange                             arange_op
nn.modules.argsort                            argsort_op
nn.modules.argwhere                           argwhere_op
nn.modules.as_tensor                          as_tensor
nn.modules.batchnorm                          _BatchNorm
nn.modules.batchnorm_fused                    FusedBatchNorm2d
nn.modules.broadcast_ops                      broadcast_like
nn.modules.constant                           ones_op
nn.modules.container                          Sequential
nn.modules.conv                               Conv2d
nn.modules.distance                           PairwiseDistance
nn.modules.dropout                            Dropout
nn.modules.dataset                            OFRecordReader
nn.modules.einsum                             einsum_op
nn.modules.empty                              empty_op
nn.modules.expand                             expand_op
nn.modules.fake_quantization                  FakeQuantization
nn.modules.flatten                            Flatten
nn.modules.fold                               Fold
nn.modules.fused_mlp                          FusedMLP
nn.modules.global_cast                        to_global_op
nn.modules.grid_sample                        grid_sample
nn.modules.instancenorm                       InstanceNorm2d
nn.modules.interpolate                        interpolate
nn.modules.is_tensor                          is_tensor_op
nn.modules.linear                             Linear
nn.modules.linspace                           linspace_op
nn.modules.logspace                           logspace_op
nn.modules.loss                               MSELoss
nn.modules.masked_select                      masked_select_op
nn.modules.math_ops                           sum
nn.modules.meshgrid                           meshgrid_op
nn.modules.min_max_observer                   MinMaxObserver
nn.modules.module                             Module
nn.modules.moving_average_min_max_observer    MovingAverageMinMaxObserver
nn.modules.nms                                nms
nn.modules.nonzero                            nonzero_op
nn.modules.norm                               norm
nn.modules.normalization                      LayerNorm
nn.modules.numel                              numel_op
nn.modules.padding                            ZeroPad2d
nn.modules.pixelshuffle                       PixelShufflev2
nn.modules.pooling                            MaxPool2d
nn.modules.quantization                       Quantization
nn.qat                                        QatConv2d
nn.qat.conv                                   QatConv1d
nn.modules.reshape                            reshape_op
nn.modules.rnn                                LSTM
nn.modules.roll                               roll_op
nn.modules.scatter                            scatter_add
nn.modules.slice                              slice_op
nn.modules.sparse                             Embedding
nn.modules.sparse_softmax_cross_entropy       sparse_softmax_cross_entropy
nn.modules.tensor_buffer                      gen_tensor_buffer
nn.modules.tensordot                          tensordot
nn.modules.trigonometric_ops                  atan2_op
nn.modules.unique                             unique_op
nn.modules.upsampling                         Upsample
nn.modules.utils                              _pair
nn.modules.where                              where_op
nn.optimizer                                  SGD
nn.optimizer.adadelta                         Adadelta
nn.optimizer.adagrad                          Adagrad
nn.optimizer.adam                             Adam
nn.optimizer.adamw                            AdamW
nn.optimizer.chained_scheduler                ChainedScheduler
nn.optimizer.constant_lr                      ConstantLR
nn.optimizer.cosine_annealing_lr              CosineAnnealingLR
nn.optimizer.cosine_annealing_warm_restarts   CosineAnnealingWarmRestarts
nn.optimizer.cosine_decay_lr                  CosineDecayLR
nn.optimizer.exponential_lr                   ExponentialLR
nn.optimizer.lamb                             LAMB
nn.optimizer.lambda_lr                        LambdaLR
nn.optimizer.lbfgs                            LBFGS
nn.optimizer.linear_lr                        LinearLR
nn.optimizer.lr_scheduler                     LRScheduler
nn.optimizer.multiplicative_lr                MultiplicativeLR
nn.optimizer.multistep_lr                     MultiStepLR
nn.optimizer.polynomial_lr                    PolynomialLR
nn.optimizer.reduce_lr_on_plateau             ReduceLROnPlateau
nn.optimizer.rmsprop                          RMSprop
nn.optimizer.sequential_lr                    SequentialLR
nn.optimizer.sgd                              SGD
nn.optimizer.step_lr                          StepLR
nn.optimizer.swa_utils                        AveragedModel
nn.optimizer.warmup_lr                        WarmupLR
nn.parallel                                   DistributedDataParallel
nn.parallel.distributed                       DistributedDataParallel
nn.parameter                                  Parameter
nn.utils                                      clip_grad_norm_
nn.utils.clip_grad                            clip_grad_norm_
nn.utils.container                            ModuleList
nn.utils.convert_parameters                   parameters_to_vector
nn.utils.packsequence                         pack_sequence
nn.utils.parameters_grouping                  ContiguousParamsGroup
nn.utils.prune                                l1_unstructured
nn.utils.rnn                                  PackedSequence
nn.utils.skip_init                            skip_init
nn.utils.weight_norm                          weight_norm
ops.array_ops                                 cat
ops.transpose_util                            get_inversed_perm
ops.util.initializer_util                     ones_
optim                                         SGD
optim.lr_scheduler                            StepLR
optim.optimizer                               Optimizer
optim.swa_utils                               AveragedModel
profiler                                      profile
profiler.events                               Events
profiler.profiler                             profile
profiler.util                                 record_function
remat                                         set_budget
sbp                                           split
special                                       erf
special.special_ops                           erf
support.env_var_util                          parse_boolean_from_env
test_utils.automated_test_util.global_scope   is_global
test_utils.automated_test_util.torch_flow_dual_object autotest
test_utils.automated_test_util.util           broadcast
sysconfig                                     with_cuda
utils.checkpoint                              checkpoint
utils.data                                    DataLoader
utils.data._utils                             worker
utils.data._utils.collate                     default_collate
utils.data._utils.fetch                       Fetcher
utils.data._utils.pin_memory                  pin_memory
utils.data._utils.signal_handling             Failure
utils.data._utils.worker                      ExceptionWrapper
utils.data.dataloader                         DataLoader
utils.data.datapipes                          IterDataPipe
utils.data.datapipes.iter                     IterableWrapper
utils.data.datapipes.map                      SequenceWrapper
utils.data.dataset                            Dataset
utils.data.decorator                          functional_datapipe
utils.data.distributed                        DistributedSampler
utils.data.sampler                            Sampler
utils.global_view                             to_global
utils.global_view.global_mode                 global_mode
utils.global_view.global_utils                to_local
utils.global_view.to_global                   to_global
utils.global_view.to_local                    to_local
utils.dlpack                                  from_dlpack
utils.hooks                                   RemovableHandle
utils.model_zoo                               load_url
utils.tensor                                  from_torch
utils.tensor.from_or_to_torch_tensor          to_torch
compiler disable
fx wrap
library custom_op
unittest                                      skip_unless_1n1d
unittest.env                                  device_num
utils._pytree tree_map
__config__                                    show
sparse mm
nested nested_tensor
nested._internal.nested_tensor NestedTensor
export export
_C._dynamo                                    list_backends
_C._dynamo.eval_frame                         _set_lru_cache
_C._functorch get_unwrapped
_tensor_str set_printoptions
func hessian
classes load_library
distributed.nn all_gather
distributed.nn.functional all_reduce
_dynamo.backends                              list_backends
_dynamo.config                                cache_size_limit
_dynamo.eval_frame                            OptimizedModule
_dynamo.exc                                   Unsupported
_dynamo.utils                                 is_compile_supported
_inductor                                     config
_inductor.config                              triton
accelerator                                   device_count
autograd.forward_ad                           unpack_dual
autograd.gradcheck                            gradgradcheck
autograd.profiler_util                        EventList
autograd.variable                             Variable
backends.cpu                                  get_cpu_capability
backends.cusparselt                           is_available
backends.mkl                                  is_available
backends.mkldnn                               is_available
backends.nnpack                               is_available
backends.openmp                               is_available
backends.opt_einsum                           is_available
backends.quantized                            is_available
backends.xnnpack                              is_available
cpu                                           device_count
cuda.graphs                                   CUDAGraph
cuda.memory                                   memory_stats
cuda.nvtx                                     range
cuda.profiler                                 profile
cuda.streams                                  Stream
distributed._composable.fsdp                  fully_shard
distributed._functional_collectives           all_reduce
distributed._tensor                           DTensor
distributed.checkpoint                        save
distributed.checkpoint.default_planner        DefaultLoadPlanner
distributed.checkpoint.filesystem             FileSystemWriter
distributed.checkpoint.stateful               Stateful
distributed.pipelining                        PipelineStage
distributed.pipelining.schedules              get_schedule_class
distributed.pipelining.stage                  PipelineStage
distributed.algorithms._checkpoint.checkpoint_wrapper checkpoint_wrapper
distributed.algorithms.ddp_comm_hooks.default_hooks fp16_compress_hook
distributed.algorithms.join                   Join
distributed.elastic.multiprocessing.errors    record
distributed.tensor.experimental               implicit_replication
distributed.c10d                              all_reduce
distributed.checkpoint.optimizer              load_sharded_optimizer_state_dict
distributed.checkpoint.state_dict             get_state_dict
distributed.device_mesh                       DeviceMesh
distributed.distributed_c10d                  all_reduce
distributed.fsdp.api                          StateDictType
distributed.fsdp.sharded_grad_scaler          ShardedGradScaler
distributed.fsdp.wrap                         transformer_auto_wrap_policy
distributed.optim                             ZeroRedundancyOptimizer
distributed.tensor                            DTensor
distributed.tensor._utils                     compute_local_shape_and_global_offset
distributed.tensor.parallel                   ColwiseParallel
distributed.tensor.parallel.style             ParallelStyle
distributed.tensor.placement_types            Shard
futures                                       Future
fx._symbolic_trace                            Node
fx.experimental.proxy_tensor                  get_proxy_mode
fx.experimental.symbolic_shapes               guard_or_false
fx.graph                                      Node
fx.graph_module                               Node
fx.interpreter                                Node
fx.node                                       Node
fx.proxy                                      Node
hpu                                           is_available
mlu                                           is_available
mps                                           is_available
mtia                                          is_available
musa                                          is_available
nn.attention.flex_attention                   create_block_mask
quasirandom                                   SobolEngine
nn.attention                                  sdpa_kernel
overrides                                     has_torch_function
npu                                           is_available
random                                        fork_rng
return_types                                  max
serialization                                 safe_globals
storage                                       TypedStorage
testing                                       assert_close
testing._comparison                           assert_close
utils._python_dispatch                        TorchDispatchMode
utils._triton                                 has_triton
utils.benchmark                               Timer
utils.benchmark.utils.common                  Measurement
utils.benchmark.utils.compare                 Compare
utils.benchmark.utils.timer                   Timer
utils.cpp_extension                           load
utils.data.graph                              traverse
utils.data.graph_settings                     apply_sharding
utils.flop_counter                            FlopCounterMode
xpu                                           is_available
"""
WORDS = TYPICAL.split()
NAMES = dict(zip(WORDS[::2], WORDS[1::2], strict=True))


@pytest.mark.parametrize("path", NAMES)
def test_a_path_leads_to_its_names(path: str) -> None:
    module = importlib.import_module(f"oneflow.{path}")
    assert getattr(module, NAMES[path]) is not None


@pytest.mark.parametrize("path", ["utils.data._utils.worker", "amp.autocast_mode", "nn.utils.rnn"])
def test_a_path_is_an_attribute_of_what_is_above_it(path: str) -> None:
    """LiBai asks a fresh process for `flow.utils.data._utils.worker`."""
    code = f"import oneflow; print(oneflow.{path}.{NAMES[path]}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip()


def test_every_row_has_a_typical_name() -> None:
    needs_a_package = {path for path in PATHS if path.startswith("utils.tensorboard")}
    assert not {path for path, row in PATHS.items() if row} - NAMES.keys() - needs_a_package


def test_a_path_in_an_import_statement() -> None:
    from oneflow.framework.tensor import Tensor  # type: ignore[import-not-found]
    from oneflow.nn.modules.utils import _pair, _reverse_repeat_tuple  # type: ignore

    assert Tensor is flow.Tensor
    assert _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2)
    assert _reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
    assert flow.nn.modules.utils._pair is _pair
    assert flow.framework.dtype.float32 is flow.float32


def test_star_imports_of_a_path() -> None:
    found: dict[str, object] = {}
    exec("from oneflow.nn.optimizer.step_lr import *", found)
    assert found["StepLR"] is flow.optim.lr_scheduler.StepLR


def test_a_path_does_not_hide_a_function_of_its_name() -> None:
    for path in ("nn.functional.pad", "asyncs.thread", "utils.global_view.to_global", "tensor"):
        importlib.import_module(f"oneflow.{path}")
    assert flow.nn.functional.pad.__name__ == "pad"
    assert callable(flow.asyncs.thread)
    assert callable(flow.utils.global_view.to_global)
    assert flow.tensor([1]).tolist() == [1]


def test_what_is_nowhere_is_said_to_be_nowhere() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"oneflow\.nn\.no_such"):
        importlib.import_module("oneflow.nn.no_such")
    with pytest.raises(AttributeError, match=r"'oneflow.framework.dtype' has no attribute 'nope'"):
        flow.framework.dtype.nope  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'oneflow' has no attribute 'nope'"):
        flow.nope  # noqa: B018


def test_importing_oneflow_does_not_read_the_table() -> None:
    code = "import sys, oneflow; print('oneflow.paths' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
