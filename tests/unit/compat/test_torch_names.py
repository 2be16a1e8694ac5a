"""Names that programs of PyTorch ask for: answers, and refusals that name the remedy."""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import ArgumentError, DeviceError, OneFlowError
from oneflow.core.no_effect import NoEffectWarning


def module(name: str) -> Any:
    return importlib.import_module(f"oneflow.{name}")


ANSWERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "threads": (lambda: flow.get_num_threads() >= 1, True),
    "interop threads": (flow.get_num_interop_threads, 1),
    "accelerator": (lambda: flow.accelerator.is_available(), flow.cuda.is_available()),
    "accelerators": (lambda: flow.accelerator.device_count(), flow.cuda.device_count()),
    "host": (lambda: flow.get_device_module("cpu").device_count(), 1),
    "module of GPUs": (lambda: flow.get_device_module("cuda") is flow.cuda, True),
    "levels of vectors": (
        lambda: module("backends.cpu").get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT"),
        True,
    ),
    "wrappers": (
        lambda: module("utils._python_dispatch").is_traceable_wrapper_subclass(flow.ones(1)),
        False,
    ),
    "oneDNN": (lambda: flow.backends.mkldnn.is_available(), False),
    "Apple's system": (lambda: flow.backends.mps.is_macos_or_newer(12, 0), False),
    "exports": (lambda: flow.onnx.is_in_onnx_export(), False),
    "tracing": (flow._C._get_tracing_state, None),
    "functorch": (flow._C._are_functorch_transforms_active, False),
    "own device": (flow._C._get_privateuse1_backend_name, "privateuseone"),
    "XPU": (lambda: (flow.xpu.is_available(), flow.xpu.device_count()), (False, 0)),
    "build": (lambda: "NumPy" in flow.__config__.show(), True),
    "threads of the build": (lambda: "Threads" in flow.__config__.parallel_info(), True),
    "attention": (lambda: module("nn.attention").SDPBackend.MATH.name, "MATH"),
    "backends of devices": (
        lambda: module("distributed").Backend.default_device_backend_map["cpu"],
        "gloo",
    ),
    "kernels of attention": (flow.backends.cuda.flash_sdp_enabled, False),
    "safe globals": (lambda: flow.serialization.get_safe_globals(), []),
    "libraries": (lambda: flow._dynamo.config.cache_size_limit, 8),
    "compiled modules": (lambda: isinstance(3, module("_dynamo").OptimizedModule), False),
    "traces": (lambda: isinstance(3, flow.fx.GraphModule), False),
    "symbols": (lambda: isinstance(3, flow.SymInt), False),
    "layouts": (lambda: flow.ones(1).layout is flow.sparse_coo, False),
    "variables": (
        lambda: isinstance(flow.nn.Parameter(flow.ones(1)), flow.autograd.Variable),
        True,
    ),
    "results": (lambda: type(flow.ones(2).max(0)) is flow.return_types.max, True),
    "groups": (flow.distributed.is_initialized, False),
    "backends": (lambda: flow.distributed.Backend("GLOO"), "gloo"),
    "members": (lambda: flow.distributed.get_process_group_ranks(), [0]),
    "fusing": (
        lambda: module("optim.optimizer")._default_to_fused_or_foreach([], False),
        (False, False),
    ),
    "kinds": (lambda: module("utils.data.dataloader")._DatasetKind.Iterable, 1),
    "states of workers": (
        lambda: len(module("utils.data._utils.worker")._generate_state(3, 1)),
        4,
    ),
    "dual": (lambda: module("autograd.forward_ad").unpack_dual(flow.ones(1)).tangent, None),
    "peaks": (lambda: flow.cuda.max_memory_allocated() >= 0, True),
    "streams": (lambda: flow.cuda.current_stream() == flow.cuda.Stream(), True),
    "captures": (flow.cuda.is_current_stream_capturing, False),
    "norms": (
        lambda: isinstance(
            flow.nn.InstanceNorm2d(2), module("nn.modules.instancenorm")._InstanceNorm
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_question_has_its_answer(name: str) -> None:
    ask, answer = ANSWERS[name]
    assert ask() == answer


REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "jit.load": (lambda: flow.jit.load("x.pt"), OneFlowError, "load_state_dict"),
    "jit.save": (lambda: flow.jit.save(1, "x.pt"), OneFlowError, r"graph\.export"),
    "fx": (lambda: flow.fx.Tracer(), OneFlowError, r"nn\.Graph"),
    "xpu": (lambda: flow.xpu.synchronize(), DeviceError, "cpu or cuda"),
    "mesh": (
        lambda: module("distributed.device_mesh").init_device_mesh("cpu", (2,)),
        OneFlowError,
        "2 of 1 ranks",
    ),
    "partial maxima": (
        lambda: module("distributed.tensor").Partial("max"),
        OneFlowError,
        "partial max is not supported",
    ),
    "FSDP without parts": (
        lambda: module("distributed.fsdp").FullyShardedDataParallel(
            flow.nn.Linear(1, 1),
            sharding_strategy=module("distributed.fsdp").ShardingStrategy.NO_SHARD,
        ),
        OneFlowError,
        "DistributedDataParallel",
    ),
    "sharded states": (
        lambda: module("distributed.optim").ZeroRedundancyOptimizer(),
        OneFlowError,
        "enable_zero",
    ),
    "CUDA graphs": (lambda: flow.cuda.CUDAGraph(), OneFlowError, r"nn\.Graph"),
    "extensions": (lambda: module("utils.cpp_extension").load("x"), OneFlowError, "in Python"),
    "duals": (
        lambda: module("autograd.forward_ad").make_dual(1, 2),
        RuntimeError,
        r"functional\.jvp",
    ),
    "parts of ranks": (lambda: flow.distributed.new_group([0, 1]), OneFlowError, "world of 1"),
    "bits of floats": (
        lambda: flow.distributed.all_reduce(flow.ones(1), flow.distributed.ReduceOp.BAND),
        OneFlowError,
        "float32 numbers have no band",
    ),
    "premultiplied sums": (
        lambda: flow.distributed.all_reduce(flow.ones(1), flow.distributed.ReduceOp.PREMUL_SUM),
        OneFlowError,
        "PREMUL_SUM.*AVG",
    ),
    "sparse": (lambda: flow.sparse_bsr_tensor(1, 2), OneFlowError, "sparse_csr_tensor"),
    "layouts": (lambda: flow.zeros(2, layout=flow.sparse_coo), ValueError, "strided.*sparse_coo"),
    "nested": (lambda: flow.nested.nested_tensor([]), OneFlowError, "pad"),
    "export": (lambda: flow.export.export(1), OneFlowError, r"graph\.export\(file\)"),
    "scaled products": (lambda: flow._scaled_mm(1, 2), OneFlowError, "float32"),
    "storages": (lambda: module("storage").TypedStorage(), OneFlowError, "UntypedStorage"),
    "tensors on a foreign device": (lambda: flow.ones(2, device="mps"), DeviceError, "cpu or cuda"),
    "moves to a foreign device": (lambda: flow.ones(2).to("xpu"), DeviceError, "cpu or cuda"),
    "moves to an unknown device": (
        lambda: flow.ones(2).to("cpu+mine"),
        DeviceError,
        "Expected one of cpu, cuda",
    ),
    "unknown devices": (lambda: flow.device("tpu"), DeviceError, "Expected one of cpu, cuda"),
    "modes of dispatch": (
        lambda: module("utils._python_dispatch").TorchDispatchMode(),
        OneFlowError,
        "profiler",
    ),
    "kernels": (
        lambda: module("nn.attention").sdpa_kernel([]).__enter__(),
        ArgumentError,
        "SDPBackend",
    ),
    "reductions": (
        lambda: flow.segment_reduce(flow.ones(2), "median", lengths=flow.tensor([2])),
        ArgumentError,
        "sum.*median",
    ),
    "lists of other lengths": (
        lambda: flow._foreach_add([flow.ones(1)], [flow.ones(1)] * 2),
        ArgumentError,
        "_foreach_add.*1 and 2",
    ),
    "unsigned and signed": (
        lambda: flow.promote_types(flow.uint16, flow.int64),
        TypeError,
        "uint16 and int64",
    ),
    "ops of others": (
        lambda: module("compat.torch.libraries").aten.no_such_op.default(1),
        OneFlowError,
        r"torch\.ops\.aten\.no_such_op",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_says_what_to_do(name: str) -> None:
    call, kind, text = REFUSALS[name]
    with pytest.raises(kind, match=text):
        call()


def test_names_of_devices_that_are_not_here() -> None:
    for text in ("mps", "xpu", "hpu", "cpu", "meta", "cuda:0"):
        assert str(flow.device(text)) == str(torch.device(text)) == text
    assert flow.device("mps") != flow.device("xpu") and flow.device("cpu").type == "cpu"


def test_random_blocks_give_the_state_back() -> None:
    state = flow.random.get_rng_state()
    with flow.random.fork_rng(devices=[]):
        inside = flow.rand(3)
    assert flow.equal(flow.rand(3), inside)
    flow.random.set_rng_state(state)
    assert flow.equal(flow.rand(3), inside)


def test_trusted_classes_are_noted_for_a_block() -> None:
    with flow.serialization.safe_globals([dict]):
        flow.serialization.add_safe_globals([list, dict])
        assert flow.serialization.get_safe_globals() == [dict, list]
    assert flow.serialization.get_safe_globals() == []
    file = io.BytesIO()
    flow.serialization.save({"w": flow.ones(2)}, file)
    file.seek(0)
    assert flow.serialization.load(file)["w"].tolist() == [1, 1]


def test_settings_without_an_effect_say_so_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NoEffectWarning, match="names the op"):
            flow.autograd.set_detect_anomaly(True)
        with flow.backends.cudnn.flags(enabled=False), flow.autograd.set_detect_anomaly(False):
            assert flow.backends.cudnn.enabled and not flow.autograd.is_anomaly_enabled()
    with pytest.warns(NoEffectWarning, match="stay in float32"):
        flow.set_float32_matmul_precision("high")
    assert flow.get_float32_matmul_precision() == "high"
    flow.set_float32_matmul_precision("highest")


def test_settings_of_a_compiler_can_be_set() -> None:
    config, inductor = module("_dynamo.config"), module("_inductor.config")
    config.suppress_errors = True
    inductor.triton.cudagraphs = True
    assert config.suppress_errors and inductor.triton.cudagraphs is True


def test_arguments_of_to_are_taken_apart() -> None:
    parse = flow._C._nn._parse_to
    for args in (("cpu", "float64"), ("cpu",), ("float16",)):
        ours = [getattr(flow, a) if hasattr(flow, a) and a != "cpu" else a for a in args]
        theirs = [getattr(torch, a) if a != "cpu" else a for a in args]
        device, dtype, non_blocking, form = torch._C._nn._parse_to(*theirs)
        found = parse(*ours)
        assert str(found[0]) == str(device) and found[2:] == (non_blocking, form)
        assert str(found[1]).split(".")[-1] == str(dtype).split(".")[-1]
    with pytest.raises(TypeError, match="floating point"):
        parse(flow.int64)


def test_gradients_are_checked_by_differences() -> None:
    class Wrong(flow.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: flow.Tensor) -> flow.Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: flow.Tensor) -> flow.Tensor:
            return grad

    x = flow.tensor([1.0, 3.0], dtype=flow.float64, requires_grad=True)
    y = flow.tensor([2.0, -1.0], dtype=flow.float64, requires_grad=True)
    assert flow.autograd.gradcheck(lambda a, b: (a * b.exp(), a.sum()), (x, y))
    assert flow.autograd.gradgradcheck(lambda a, b: (a**3 * b).sum(), (x, y))
    assert not flow.autograd.gradcheck(Wrong.apply, (x,), raise_exception=False)
    with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0"):
        flow.autograd.gradcheck(Wrong.apply, (x,))
    with pytest.raises(ValueError, match="require a gradient"):
        flow.autograd.gradcheck(Wrong.apply, (x.detach(),))


def test_saved_tensors_wait_on_the_host() -> None:
    x = flow.tensor([2.0], requires_grad=True)
    with flow.autograd.graph.save_on_cpu():
        y = x.exp() * x
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [3 * np.exp(2.0)], rtol=1e-6)


def test_swapped_tensors_change_places() -> None:
    a, b = flow.nn.Parameter(flow.ones(2)), flow.zeros(3)
    setattr(b, "tag", "b")  # noqa: B010
    flow.utils.swap_tensors(a, b)
    assert type(a) is flow.Tensor and isinstance(b, flow.nn.Parameter)
    assert a.shape == (3,) and b.tolist() == [1, 1] and a.tag == "b" and not hasattr(b, "tag")
    b.sum().backward()
    assert b.grad is not None


def test_close_tensors_pass_and_others_say_where() -> None:
    check = flow.testing.assert_close
    check({"a": [flow.ones(2), 1.0]}, {"a": [flow.ones(2) + 1e-7, 1.0]})
    with pytest.raises(AssertionError, match=r"1 / 2.*\n.*index \(1,\)(.|\n)*item \['a'\]\[0\]"):
        check({"a": [flow.ones(2)]}, {"a": [flow.tensor([1.0, 2.0])]})
    with pytest.raises(AssertionError, match="'dtype' do not match"):
        check(flow.ones(2), flow.ones(2, dtype=flow.float64))
    made = flow.testing.make_tensor(3, 4, dtype=flow.int8, low=1, high=3)
    assert made.shape == (3, 4) and int(made.min()) >= 1 and int(made.max()) <= 2


def test_value_that_comes_later() -> None:
    made = flow.futures.Future()
    doubled = made.then(lambda f: 2 * f.wait())
    assert not made.done()
    made.set_result(21)
    assert doubled.wait() == 42 and flow.futures.wait_all([made, doubled]) == [21, 42]
    assert flow.futures.collect_all([made, doubled]).wait() == [made, doubled]


def test_activations_are_computed_again_under_plain_names() -> None:
    model = flow.nn.Sequential(flow.nn.Linear(2, 3), flow.nn.Tanh(), flow.nn.Linear(3, 1))
    x = flow.ones(1, 2, requires_grad=True)
    model(x).sum().backward()
    expected = [p.grad.numpy().copy() for p in model.parameters()]
    names = list(model.state_dict())
    wrappers = module("distributed.algorithms._checkpoint.checkpoint_wrapper")
    wrappers.apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, flow.nn.Linear))
    assert isinstance(model[0], wrappers.CheckpointWrapper) and list(model.state_dict()) == names
    model.load_state_dict(model.state_dict())
    for p in model.parameters():
        p.grad = None
    model(x).sum().backward()
    for p, grad in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), grad, rtol=1e-6)


def test_state_dicts_have_the_names_of_the_plain_module() -> None:
    states = module("distributed.checkpoint.state_dict")
    model = flow.nn.parallel.DistributedDataParallel(flow.nn.Linear(2, 1))
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(flow.ones(1, 2)).sum().backward()
    optimizer.step()
    weights, moments = states.get_state_dict(model, optimizer)
    assert list(weights) == ["weight", "bias"] and set(moments["state"]) == {"weight", "bias"}
    other = flow.nn.Linear(2, 1)
    fresh = flow.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    states.set_state_dict(other, fresh, model_state_dict=weights, optim_state_dict=moments)
    assert flow.equal(other.weight, model.module.weight)
    assert flow.equal(
        fresh.state[other.weight]["momentum_buffer"],
        optimizer.state[model.module.weight]["momentum_buffer"],
    )


def test_a_process_group_is_that_of_all_ranks() -> None:
    dist = flow.distributed
    dist.init_process_group("gloo", rank=0, world_size=1)
    assert dist.is_initialized() and dist.get_backend() in ("gloo", "nccl")
    x = flow.tensor([2.0, 4.0])
    dist.all_reduce(x, dist.ReduceOp.AVG, group=dist.group.WORLD)
    group = dist.new_group([0])
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2, 4] and dist.get_process_group_ranks(group) == [0]
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="MASTER_PORT names no port"):
        dist.init_process_group("gloo", world_size=2)


def test_ops_by_name_are_functions() -> None:
    ops, library = module("compat.torch.libraries"), module("library")
    assert ops.aten.add.Tensor(flow.ones(2), 1).tolist() == [2, 2]
    assert ops.aten._softmax.default(flow.zeros(2), 0).tolist() == [0.5, 0.5]
    assert ops.aten.mm.default is ops.aten.mm.default

    @library.custom_op("mine::twice", mutates_args=())
    def twice(x: flow.Tensor) -> flow.Tensor:
        return 2 * x

    own = library.Library("own", "DEF")
    own.define("thrice(Tensor x) -> Tensor")
    own.impl("thrice", lambda x: 3 * x, "CPU")
    assert ops.mine.twice(flow.ones(1)).tolist() == [2]
    assert ops.own.thrice.default(flow.ones(1)).tolist() == [3]
    assert not hasattr(ops.own, "missing")
    boxes = flow.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    kept = ops.torchvision.nms(boxes, flow.tensor([0.9, 0.8, 0.7]), 0.5)
    assert kept.tolist() == [0, 2]
    ops.load_library(Path("site-packages/torchvision/_C.so"))


def test_largest_elements_of_the_cells_of_boxes() -> None:
    """roi_pool of the kernel's formula, written out."""
    x = flow.arange(32, dtype=flow.float32).reshape(1, 2, 4, 4)
    out, _ = module("compat.torch.libraries").torchvision.roi_pool(
        x, flow.tensor([[0.0, 0, 0, 3, 3], [0, 1, 1, 2, 2]]), 1.0, 2, 2
    )
    np.testing.assert_array_equal(out[0, 0].numpy(), [[5, 7], [13, 15]])
    np.testing.assert_array_equal(out[1, 1].numpy(), [[21, 22], [25, 26]])


def test_flops_of_products_are_counted() -> None:
    counter = module("utils.flop_counter").FlopCounterMode(display=False)
    with counter:
        flow.ones(2, 3) @ flow.ones(3, 4)
        flow.nn.functional.conv2d(flow.ones(1, 2, 5, 5), flow.ones(4, 2, 3, 3))
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 + 2 * 4 * 9 * 2 * 9


class Mine(flow.distributions.Normal):  # type: ignore[misc]
    """A family of the program's own, as zuko and pyro write them."""

    def __init__(self, loc: flow.Tensor, tag: str) -> None:
        self.tag = tag
        super().__init__(loc, 1.0)

    def expand(self, shape: Any, _instance: Any = None) -> Any:
        new = self._get_checked_instance(Mine, _instance)
        new.tag = self.tag
        return super().expand(shape, _instance=new)


def test_distributions_of_others_expand() -> None:
    made = Mine(flow.zeros(2), "own").expand((3, 2))
    assert isinstance(made, Mine) and made.tag == "own" and made.batch_shape == (3, 2)

    class Further(Mine):
        def __init__(self) -> None:
            super().__init__(flow.zeros(2), "further")

    with pytest.raises(NotImplementedError, match="Further of Mine"):
        Further().expand((3, 2))
    wide = flow.distributions.Independent(made, 1).expand((5, 3))
    assert wide.batch_shape == (5, 3) and isinstance(wide.base_dist, Mine)


def test_constraints_have_classes_and_properties() -> None:
    c, utils = flow.distributions.constraints, flow.distributions.utils

    class Softplus(type(c.positive)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(lower_bound=0.0)

    assert Softplus().check(flow.tensor([-1.0, 0.0, 1.0])).tolist() == [False, False, True]
    assert isinstance(c.positive, c.greater_than) and not isinstance(c.real, c.greater_than)

    class Own:
        calls = 0

        @c.dependent_property(is_discrete=False, event_dim=1)
        def support(self) -> Any:
            return c.interval(0, 1)

        @utils.lazy_property
        def heavy(self) -> int:
            self.calls += 1
            return self.calls

    own = Own()
    assert c.is_dependent(Own.support) and Own.support.event_dim == 1
    assert own.support.upper_bound == 1 and (own.heavy, own.heavy) == (1, 1)


def test_gradients_flow_through_collectives_of_one_rank() -> None:
    nn = module("distributed.nn")
    x = flow.ones(2, requires_grad=True)
    y = nn.all_reduce(x) + nn.all_gather(x)[0] + nn.broadcast(x, 0)
    (y + nn.reduce_scatter(flow.zeros(2), [x])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4, 4]


def test_sizes_are_nodes_of_trees() -> None:
    pytree = module("utils._pytree")
    leaves, spec = pytree.tree_flatten((flow.Size([2, 3]), 1))
    assert leaves == [2, 3, 1] and pytree.tree_unflatten(leaves, spec) == ((2, 3), 1)


def test_members_of_modules_by_a_function() -> None:
    net = flow.nn.Sequential(flow.nn.Linear(2, 3), flow.nn.BatchNorm1d(3))
    found = net._named_members(lambda m: m._buffers.items(), prefix="net")
    assert next(name for name, _ in found) == "net.1.running_mean"
    weight = net[0].weight
    assert weight._cdata == net[0].weight._cdata != net[0].bias._cdata


def test_one_tensor_gives_the_number_of_copies() -> None:
    assert flow.ones(3).repeat(flow.tensor(2)).shape == (6,)


def test_layers_draw_their_weights_anew() -> None:
    for layer in (flow.nn.GRUCell(2, 3), flow.nn.LSTMCell(2, 3), flow.nn.Bilinear(2, 2, 3)):
        before = [p.clone() for p in layer.parameters()]
        layer.reset_parameters()
        assert all(not flow.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    prelu = flow.nn.PReLU(2, init=0.5)
    flow.nn.init.zeros_(prelu.weight)
    prelu.reset_parameters()
    assert prelu.weight.tolist() == [0.5, 0.5]


def test_segments_under_the_names_of_scatter() -> None:
    found = [
        m._segment_reduce(m.arange(6.0).reshape(3, 2), "amax", offsets=m.tensor([0, 2, 3]), axis=0)
        for m in (flow, torch)
    ]
    assert found[0].tolist() == found[1].tolist()


def test_parts_of_a_size_under_the_name_of_the_method() -> None:
    assert [len(x) for x in flow.arange(5).split(split_size=2)] == [2, 2, 1]
