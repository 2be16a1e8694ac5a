"""Samples of the public names that PyTorch's own tables of samples do not cover.

A sample is a function of the library (`oneflow` or `torch`): its results must be the same of
both. A name that cannot be compared stands in NOT_COMPARED with the reason.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from . import compat_samples, distribution_samples

Sample = Callable[[Any], Any]


def ramp(m: Any, *shape: int, dtype: str = "float32") -> Any:
    """A tensor with distinct numbers around zero."""
    numbers = np.linspace(-2.0, 3.0, int(np.prod(shape))).reshape(shape)
    return m.from_numpy(numbers.astype(dtype))


def name_of(dtype: Any) -> str:
    """A dtype without its library."""
    return str(dtype).split(".")[-1]


def filled(module: Any, value: float = 0.1) -> Any:
    """A layer whose parameters do not depend on chance."""
    for i, p in enumerate(module.parameters()):
        p.data.fill_(value * (i + 1))
    return module


def layer(name: str, *args: Any, shape: tuple[int, ...] = (2, 3), **keywords: Any) -> list[Sample]:
    """The output and the input gradient of a layer without chance."""

    def sample(m: Any) -> Any:
        x = ramp(m, *shape).requires_grad_()
        out = filled(getattr(m.nn, name)(*args, **keywords))(x)
        out.sum().backward()
        return out.detach(), x.grad

    return [sample]


def decoder(m: Any) -> Any:
    """The output of a stack of two decoder layers that attend to a memory, and its gradient."""
    stack = m.nn.TransformerDecoder(
        m.nn.TransformerDecoderLayer(4, 2, 6, 0.0), 2, m.nn.LayerNorm(4)
    )
    x, memory = ramp(m, 3, 2, 4), ramp(m, 5, 2, 4).requires_grad_()
    for i, p in enumerate(stack.parameters()):
        p.data.copy_(ramp(m, *p.shape) * (0.1 + 0.02 * i))
    out = stack(x.sin(), memory)
    (out * out.detach().cos()).sum().backward()
    return out.detach(), memory.grad


def bags(m: Any) -> Any:
    """Sums of bags of rows of a table."""
    table = m.nn.EmbeddingBag(5, 3, mode="sum")
    table.weight.data.copy_(ramp(m, 5, 3))
    return table(m.tensor([0, 4, 2, 2, 1]), m.tensor([0, 2])).detach()


def clustered(m: Any) -> Any:
    """Log-probabilities of classes in clusters, and their loss."""
    softmax = m.nn.AdaptiveLogSoftmaxWithLoss(4, 7, [2, 5], div_value=2.0)
    for i, p in enumerate(softmax.parameters()):
        p.data.copy_(ramp(m, *p.shape) * (0.1 + 0.05 * i))
    found = softmax(ramp(m, 3, 4), m.tensor([0, 3, 6]))
    return found.output.detach(), found.loss.detach()


def still(name: str, *args: Any) -> list[Sample]:
    """A layer that draws numbers, while it evaluates: then it draws none."""
    dims = {"Dropout1d": (2, 3, 4), "Dropout3d": (2, 3, 4, 5, 2)}.get(name, (2, 3, 4, 5))
    return [lambda m: getattr(m.nn, name)(*args).eval()(ramp(m, *dims))]


def legacy(name: str) -> list[Sample]:
    """The constructors of old, from numbers and from sizes."""
    return [
        lambda m: getattr(m, name)([1, 0, 1]),
        lambda m: (name_of(getattr(m, name)(2, 3).dtype), tuple(getattr(m, name)(2, 3).shape)),
    ]


def each(sample: Sample, *names: str) -> dict[str, list[Sample]]:
    """One sample for several names."""
    return {name: [sample] for name in names}


def saved(m: Any) -> Any:
    """Saves a dict of tensors, and returns the loaded one."""
    file = io.BytesIO()
    m.save({"a": ramp(m, 2, 3), "b": [ramp(m, 4, dtype="int64")]}, file)
    file.seek(0)
    found = m.load(file)
    return found["a"], found["b"][0]


def seeded(m: Any) -> Any:
    """Two draws after the same seed are equal, the next one differs."""
    m.manual_seed(7)
    first, second = m.rand(5), m.rand(5)
    seed = m.initial_seed()
    m.manual_seed(7)
    return seed, bool((m.rand(5) == first).all()), bool((first == second).all())


def restored(m: Any) -> bool:
    """A state of the generator that is set again gives the same draws."""
    state = m.get_rng_state()
    first = m.rand(4)
    m.set_rng_state(state)
    return bool((m.rand(4) == first).all())


def ranges(x: Any, low: float, high: float) -> tuple[Any, ...]:
    """The type of a random tensor, and whether all of it lies in [low, high)."""
    return tuple(x.shape), name_of(x.dtype), bool(((x >= low) & (x < high)).all())


def mode_of_gradients(m: Any) -> list[bool]:
    """Whether gradients are on in each kind of block."""
    seen = [m.is_grad_enabled()]
    with m.no_grad():
        seen.append(m.is_grad_enabled())
        with m.enable_grad():
            seen.append(m.is_grad_enabled())
    with m.set_grad_enabled(False):
        seen.append((ramp(m, 2).requires_grad_() * 2).requires_grad)
    with m.inference_mode():
        seen.append(m.is_grad_enabled())
    return seen


def default_dtype(m: Any) -> tuple[str, str]:
    """The dtype of new tensors before and after another is set."""
    before = name_of(m.get_default_dtype())
    m.set_default_dtype(m.float64)
    try:
        return before, name_of(m.tensor([1.5]).dtype)
    finally:
        m.set_default_dtype(m.float32)


def default_tensor_type(m: Any) -> str:
    """The dtype of new tensors under another default type."""
    m.set_default_tensor_type(m.DoubleTensor)
    try:
        return name_of(m.tensor([1.5]).dtype)
    finally:
        m.set_default_tensor_type(m.FloatTensor)


def container(m: Any) -> list[str]:
    """The names of parameters below nested containers."""
    nn = m.nn
    net = nn.Module()
    net.a = nn.ModuleDict({"x": nn.Linear(2, 3), "y": nn.Sequential(nn.Linear(3, 3), nn.ReLU())})
    net.b = nn.ModuleList([nn.Linear(1, 1), nn.Identity()])
    net.c = nn.ParameterList([nn.Parameter(m.ones(2))])
    net.d = nn.ParameterDict({"w": nn.Parameter(m.zeros(3))})
    copied = copy.deepcopy(net)
    return [name for name, _ in copied.named_parameters()]


def squared(m: Any) -> Any:
    """The gradient that a Function of the user's own computes."""

    class Square(m.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, d: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * d

    x = ramp(m, 3).requires_grad_()
    Square.apply(x).sum().backward()
    return x.grad


def gradients(m: Any) -> Any:
    """`autograd.grad` and `autograd.backward` of a small graph, unused inputs included."""
    x, y, z = (ramp(m, 3).requires_grad_() for _ in range(3))
    out = (x * y).sum()
    found = m.autograd.grad(out, [x, y, z], allow_unused=True, retain_graph=True)
    m.autograd.backward([out], [m.tensor(2.0)])
    return [*found, x.grad, z.grad]


def folded(m: Any, *args: Any, **keywords: Any) -> list[Any]:
    """Columns of windows, and their sums, with gradients."""
    x = ramp(m, 2, 3, 6, 5).requires_grad_()
    columns = m.nn.functional.unfold(x, *args, **keywords)
    image = m.nn.functional.fold(columns, (6, 5), *args, **keywords)
    (image * image).sum().backward()
    return [columns.detach(), image.detach(), x.grad]


def unpooled(m: Any) -> Any:
    """Maxima taken back to their places, by layers."""
    values, places = m.nn.MaxPool2d(2, return_indices=True)(ramp(m, 1, 2, 4, 6))
    return m.nn.MaxUnpool2d(2)(values, places), m.nn.MaxUnpool2d(2)(values, places, (5, 7))


def gridded(m: Any, mode: str, padding: str, corners: bool) -> list[Any]:
    """An image and a volume read through affine maps."""
    found = []
    for dims in (2, 3) if mode != "bicubic" else (2,):
        theta = ramp(m, 2, dims, dims + 1, dtype="float64").requires_grad_()
        x = ramp(m, 2, 3, *(4, 5, 3)[:dims], dtype="float64").requires_grad_()
        size = (2, 3, *(3, 4, 2)[:dims])
        grid = m.nn.functional.affine_grid(theta, size, align_corners=corners)
        out = m.nn.functional.grid_sample(
            x, grid, mode=mode, padding_mode=padding, align_corners=corners
        )
        (out * out).sum().backward()
        found += [grid.detach(), out.detach(), x.grad]
        if mode != "nearest":
            found.append(theta.grad)
    return found


def by_hand(m: Any) -> Any:
    """An update by an optimizer of the user's own."""

    class Plain(m.optim.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(p.grad, alpha=-group["lr"])

    p = m.nn.Parameter(ramp(m, 3))
    (p * p).sum().backward()
    Plain([p], 0.5).step()
    return p.detach()


def categories(m: Any) -> Any:
    """All that a distribution over categories computes without drawing."""
    p = m.tensor([[0.1, 0.6, 0.3], [0.0, 2.0, 2.0]], requires_grad=True)
    d = m.distributions.Categorical(probs=p)
    e = m.distributions.Categorical(logits=p * 3)
    scores = e.log_prob(m.tensor([[0, 2], [1, 1], [2, 0]]))
    scores.sum().backward()
    shapes = tuple(d.batch_shape), tuple(d.event_shape), tuple(d.expand((4, 2)).probs.shape)
    values = d.probs, d.logits, d.entropy(), e.entropy(), d.mode, scores, p.grad, d.mean
    return [v.detach() for v in values], shapes, d.enumerate_support(), e.perplexity().detach()


def drawn(m: Any) -> Any:
    """Shares of three drawn categories, in tenths, and the shape of the draw."""
    m.manual_seed(1)
    found = m.distributions.Categorical(m.tensor([0.1, 0.6, 0.3])).sample((100, 200))
    return tuple(found.shape), [round(float((found == k).float().mean()), 1) for k in range(3)]


SAMPLES: dict[str, list[Sample]] = {
    **compat_samples.SAMPLES,
    **distribution_samples.SAMPLES,
    "Categorical": [*distribution_samples.SAMPLES["Categorical"], categories, drawn],
    "Distribution": [
        lambda m: tuple(m.distributions.Distribution((2,), (3,), validate_args=False).event_shape)
    ],
    **{
        name: [lambda m, n=name: name_of(getattr(m, n))]
        for name in ("strided", "contiguous_format", "preserve_format", "channels_last")
    },
    "channels_last_3d": [lambda m: name_of(m.channels_last_3d)],
    "layout": [lambda m: (isinstance(m.strided, m.layout), name_of(m.zeros(2).layout))],
    "memory_format": [lambda m: isinstance(m.channels_last, m.memory_format)],
    "ComplexFloatTensor": [lambda m: name_of(m.complex64)],
    "ComplexDoubleTensor": [lambda m: name_of(m.complex128)],
    "kineto_available": [lambda m: m.profiler.ProfilerActivity.CPU.name],
    "PixelUnshuffle": layer("PixelUnshuffle", 2, shape=(2, 3, 4, 6)),
    "ChannelShuffle": layer("ChannelShuffle", 2, shape=(2, 4, 3, 3)),
    "TripletMarginWithDistanceLoss": [
        lambda m: m.nn.TripletMarginWithDistanceLoss(margin=0.5, swap=True)(
            ramp(m, 2, 3), ramp(m, 2, 3) * 2, 1 - ramp(m, 2, 3)
        )
    ],
    "is_scripting": [lambda m: m.jit.is_scripting()],
    "is_tracing": [lambda m: m.jit.is_tracing()],
    "dtype": [lambda m: isinstance(m.float32, m.dtype)],
    "uint8": [lambda m: m.tensor([1, 255], dtype=m.uint8)],
    "Size": [lambda m: (list(m.Size([2, 3])), m.Size([2, 3]).numel(), m.Size((4,)) == (4,))],
    "device": [lambda m: (m.device("cpu").type, str(m.device("cpu")))],
    "finfo": [
        lambda m, d=d: (m.finfo(getattr(m, d)).max, m.finfo(getattr(m, d)).eps)
        for d in ("float16", "bfloat16", "float32", "float64")
    ],
    "iinfo": [
        lambda m, d=d: (m.iinfo(getattr(m, d)).min, m.iinfo(getattr(m, d)).max)
        for d in ("uint8", "int8", "int32", "int64")
    ],
    "Tensor": [lambda m: m.Tensor([1, 2]), lambda m: tuple(m.Tensor(2, 3).shape)],
    "is_tensor": [lambda m: (m.is_tensor(m.ones(1)), m.is_tensor(1.0))],
    "tensor": [
        lambda m, v=v: m.tensor(v)
        for v in (1, 2.5, True, [], [[1, 2], [3, 4]], [1, 2.0], np.ones((2, 0)), np.int16(3))
    ],
    "as_tensor": [lambda m: m.as_tensor(np.arange(3)), lambda m: m.as_tensor([1.0], dtype=m.int32)],
    "frombuffer": [lambda m: m.frombuffer(bytearray(range(8)), dtype=m.int16, offset=2)],
    "from_numpy": [lambda m: m.from_numpy(np.arange(6.0).reshape(2, 3).T)],
    **{
        f"{kind}Tensor": legacy(f"{kind}Tensor")
        for kind in ("Float", "Double", "Half", "BFloat16", "Char", "Byte", "Int", "Long", "Bool")
    },
    "save": [saved],
    "load": [saved],
    **each(
        mode_of_gradients,
        "no_grad",
        "enable_grad",
        "set_grad_enabled",
        "inference_mode",
        "is_grad_enabled",
    ),
    "get_default_dtype": [default_dtype],
    "set_default_dtype": [default_dtype],
    "set_default_tensor_type": [default_tensor_type],
    "Generator": [lambda m: m.Generator().manual_seed(3).initial_seed()],
    "default_generator": [lambda m: m.default_generator.manual_seed(5).initial_seed()],
    **each(seeded, "manual_seed", "initial_seed"),
    **each(restored, "get_rng_state", "set_rng_state"),
    "seed": [lambda m: isinstance(m.seed(), int)],
    "rand": [
        lambda m: ranges(m.rand(3, 4), 0, 1),
        lambda m: ranges(m.rand((2, 0), dtype=m.float64), 0, 1),
    ],
    "randperm": [
        lambda m: sorted(m.randperm(7).tolist()),
        lambda m: name_of(m.randperm(0, dtype=m.int32).dtype),
    ],
    "random_": [lambda m: ranges(m.zeros(50).random_(2, 9), 2, 9)],
    **{
        f"{name}_window": [
            lambda m, name=name, n=n, p=p: getattr(m, f"{name}_window")(n, periodic=p)
            for n in (0, 1, 2, 9)
            for p in (True, False)
        ]
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
    },
    "poisson": [
        lambda m: m.poisson(m.zeros(2, 3)),
        lambda m: [round(float(x) / 10) for x in (m.poisson(m.full((4, 400), 90.0))).mean(1)],
    ],
    "gammainc": [lambda m: m.special.gammainc(ramp(m, 4).exp(), ramp(m, 4).exp() * 2)],
    "gammaincc": [lambda m: m.special.gammaincc(ramp(m, 4).exp(), ramp(m, 4).exp() * 2)],
    "dropout1d": [lambda m: m.nn.functional.dropout1d(ramp(m, 2, 3, 4), training=False)],
    "gumbel_softmax": [
        lambda m: m.nn.functional.gumbel_softmax(ramp(m, 4, 5), hard=True).sum(-1),
        lambda m: m.nn.functional.gumbel_softmax(ramp(m, 4, 5), dim=0).sum(0),
    ],
    "upsample": [
        lambda m: m.nn.functional.upsample(ramp(m, 1, 2, 3, 3), scale_factor=2),
        lambda m: m.nn.functional.upsample(ramp(m, 1, 1, 2, 2), size=(4, 4), mode="bilinear"),
    ],
    "numel": [lambda m: (m.numel(ramp(m, 2, 3)), ramp(m, 0, 3).numel(), m.tensor(1).nelement())],
    "is_nonzero": [lambda m: (m.is_nonzero(m.tensor([0.5])), m.is_nonzero(m.tensor(0)))],
    "is_floating_point": [
        lambda m: (m.is_floating_point(ramp(m, 2)), m.tensor([1]).is_floating_point())
    ],
    "from_dlpack": [lambda m: m.from_dlpack(ramp(m, 2, 3))],
    "to_dlpack": [lambda m: m.from_dlpack(ramp(m, 2, 3))],
    "cpu": [lambda m: ramp(m, 2).cpu()],
    "get_device": [lambda m: ramp(m, 2).get_device()],
    "type": [lambda m: ramp(m, 2, 3).type(m.float64)],
    "type_as": [lambda m: ramp(m, 2, 3).type_as(m.tensor([1]))],
    "is_pinned": [lambda m: ramp(m, 2).is_pinned()],
    "new": [lambda m: (tuple(ramp(m, 2).new(2, 3).shape), name_of(ramp(m, 2).new(2).dtype))],
    "new_tensor": [lambda m: ramp(m, 2, dtype="float64").new_tensor([1, 2])],
    "copy_": [lambda m: m.zeros(2, 3).copy_(m.tensor([1, 2, 3]))],
    "size": [lambda m: (list(ramp(m, 2, 3).size()), ramp(m, 2, 3).size(-1))],
    "stride": [
        lambda m: (ramp(m, 2, 3).stride(), ramp(m, 2, 3).t().stride(), ramp(m, 2, 3).stride(0)),
        lambda m: ramp(m, 4, 6)[::2, 1:].stride(),
        lambda m: ramp(m, 1, 3).expand(4, 3).stride(),
    ],
    "is_contiguous": [lambda m: (ramp(m, 2, 3).is_contiguous(), ramp(m, 2, 3).t().is_contiguous())],
    "data_ptr": [lambda m: (lambda x: x[1:].data_ptr() - x.data_ptr())(ramp(m, 4))],
    "storage_offset": [lambda m: ramp(m, 4, 3)[1:, 2:].storage_offset()],
    "dim": [lambda m: (ramp(m, 2, 3).dim(), m.tensor(1).ndimension())],
    "element_size": [lambda m: [m.zeros(1, dtype=d).element_size() for d in (m.int8, m.float64)]],
    **each(
        container,
        "Module",
        "Parameter",
        "ModuleDict",
        "ModuleList",
        "ParameterDict",
        "ParameterList",
    ),
    "Sequential": layer("Sequential"),
    "Identity": layer("Identity", 3, unused=True),
    "Hardsigmoid": layer("Hardsigmoid", shape=(3, 7)),
    "RReLU": still("RReLU"),
    "CosineSimilarity": [
        lambda m: m.nn.CosineSimilarity(dim=0)(ramp(m, 3, 4), ramp(m, 3, 4) * ramp(m, 3, 4))
    ],
    "PairwiseDistance": [lambda m: m.nn.PairwiseDistance(p=1.0)(ramp(m, 3, 4), ramp(m, 3, 4) * 2)],
    **{name: still(name, 0.3) for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")},
    "TripletMarginLoss": [
        lambda m, s=s: m.nn.TripletMarginLoss(margin=0.5, swap=s)(
            ramp(m, 3, 4), ramp(m, 3, 4) * 1.1, ramp(m, 3, 4) * 0.7
        )
        for s in (False, True)
    ],
    "RNNBase": [
        lambda m: [n for n, _ in m.nn.RNNBase("LSTM", 3, 4, num_layers=2).named_parameters()]
    ],
    "TransformerDecoder": [decoder],
    **each(lambda m: (m.pi, m.e, m.inf, m.nan != m.nan), "pi", "e", "inf", "nan"),
    "lp_pool1d": [lambda m: m.nn.functional.lp_pool1d(ramp(m, 1, 2, 8), 2.0, 3)],
    "lp_pool2d": [lambda m: m.nn.functional.lp_pool2d(ramp(m, 1, 2, 5, 6), 3.0, (2, 3), 1)],
    "lp_pool3d": [lambda m: m.nn.functional.lp_pool3d(ramp(m, 1, 2, 4, 4, 4), 2.0, 2)],
    "AlphaDropout": still("AlphaDropout", 0.3),
    "FeatureAlphaDropout": still("FeatureAlphaDropout", 0.3),
    "Unflatten": layer("Unflatten", 1, (2, 3), shape=(2, 6)),
    "EmbeddingBag": [bags],
    "AdaptiveLogSoftmaxWithLoss": [clustered],
    "RNNCellBase": [lambda m: issubclass(m.nn.LSTMCell, m.nn.modules.rnn.RNNCellBase)],
    "Flatten": [*layer("Flatten", shape=(2, 3, 4)), *layer("Flatten", 0, 1, shape=(2, 3, 4))],
    "PixelShuffle": layer("PixelShuffle", 2, shape=(1, 8, 2, 3)),
    "Upsample": layer("Upsample", scale_factor=2, shape=(1, 2, 3, 3)),
    "UpsamplingBilinear2d": layer("UpsamplingBilinear2d", scale_factor=2, shape=(1, 2, 3, 3)),
    "UpsamplingNearest2d": layer("UpsamplingNearest2d", size=(5, 4), shape=(1, 2, 3, 3)),
    "fold": [
        lambda m: folded(m, 2),
        lambda m: folded(m, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)),
    ],
    "Unfold": layer("Unfold", (2, 3), padding=1, shape=(2, 3, 4, 5)),
    "Fold": layer("Fold", (4, 5), (2, 2), shape=(2, 8, 12)),
    "affine_grid": [
        lambda m, a=mode, b=padding, c=corners: gridded(m, a, b, c)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ],
    **each(unpooled, "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"),
    "is_complex": [lambda m: (m.is_complex(m.tensor([1j])), ramp(m, 2).is_complex())],
    "is_conj": [lambda m: (m.is_conj(ramp(m, 2)), ramp(m, 2).is_neg())],
    "rfftfreq": [lambda m: m.fft.rfftfreq(8, 2.0)],
    "fftfreq": [lambda m, n=n: (m.fft.fftfreq(n, 0.5), m.fft.rfftfreq(n)) for n in (1, 6, 7)],
    "gammaln": [lambda m: m.special.gammaln(ramp(m, 6) + 0.1)],
    "is_same_size": [lambda m: m.is_same_size(ramp(m, 2), ramp(m, 3, 1))],
    "chain_matmul": [lambda m: m.chain_matmul(ramp(m, 3, 4), ramp(m, 4, 2), ramp(m, 2, 5))],
    "expit": [lambda m: m.special.expit(ramp(m, 5))],
    "multigammaln": [lambda m: m.special.multigammaln(ramp(m, 5) + 6, 3)],
    "backward": [gradients],
    "grad": [gradients],
    "Function": [squared],
    "Optimizer": [by_hand],
}

SAMPLES |= {
    "NLLLoss2d": [
        lambda m: m.nn.NLLLoss2d()(ramp(m, 2, 3, 2, 2), m.tensor(2 * [[[0, 2], [1, 1]]]))
    ],
    "conv_tbc": [
        lambda m: m.conv_tbc(ramp(m, 5, 2, 3), ramp(m, 3, 3, 4), ramp(m, 4), 1),
    ],
    "upsample_nearest": [lambda m: m.nn.functional.upsample_nearest(ramp(m, 1, 2, 3, 3), (5, 4))],
    "upsample_bilinear": [
        lambda m: m.nn.functional.upsample_bilinear(ramp(m, 1, 2, 3, 3), scale_factor=2)
    ],
    **{
        f"max_pool{n}d_with_indices": [
            lambda m, n=n: getattr(m.nn.functional, f"max_pool{n}d_with_indices")(
                ramp(m, 2, 3, *(n * [5])).sin(), 3, 2, 1, 1, True
            )
        ]
        for n in (1, 2, 3)
    },
    **{
        f"adaptive_max_pool{n}d_with_indices": [
            lambda m, n=n: getattr(m.nn.functional, f"adaptive_max_pool{n}d_with_indices")(
                ramp(m, 2, 3, *(n * [5])).sin(), 3
            )
        ]
        for n in (1, 2, 3)
    },
    **{
        f"fractional_max_pool{n}d_with_indices": [
            lambda m, n=n: getattr(m.nn.functional, f"fractional_max_pool{n}d_with_indices")(
                ramp(m, 2, 3, *(n * [6])).sin(), 2, 3, _random_samples=ramp(m, 2, 3, n).sigmoid()
            )
        ]
        for n in (2, 3)
    },
}
NOT_COMPARED = {
    **compat_samples.NOT_COMPARED,
    **dict.fromkeys(
        (
            *("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval"),
            *("fuse_linear_bn_weights", "convert_conv2d_weight_memory_format", "functional_call"),
            *("convert_conv3d_weight_memory_format", "remove_spectral_norm"),
        ),
        "of modules: tests/unit/nn/test_module_tools.py",
    ),
    **dict.fromkeys(
        (
            *("promote_types", "can_cast", "result_type", "is_signed", "resize_"),
            *("is_inference", "scalar_tensor", "empty_strided", "is_set_to", "is_shared", "set_"),
            *("share_memory_", "record_stream", "detach_", "fill_diagonal_", "apply_", "map_"),
            *("lstm", "gru", "rnn_tanh", "rnn_relu", "DataParallel"),  # tests/unit/nn
            *("log_normal_", "cauchy_", "geometric_", "resize_as_", "transpose_", "t_"),
        ),
        "no op of tensors, or in place: tests/unit/functional/test_torch_methods.py",
    ),
    **dict.fromkeys(
        (
            *("float8_e4m3fn", "float8_e5m2", "UntypedStorage", "asarray", "untyped_storage"),
            *("_assert", "_log_api_usage_once", "get_default_device", "Buffer"),
        ),
        "no op of tensors: tests/unit/test_torch_marks.py",
    ),
    **dict.fromkeys(
        (
            *("ProfilerAction", "ProfilerActivity", "profile", "record_function"),
            *("schedule", "tensorboard_trace_handler"),
        ),
        "times differ; tests/unit/test_profiler.py",
    ),
    **dict.fromkeys(
        (
            *("GradScaler", "autocast", "is_autocast_enabled", "set_autocast_enabled"),
            *("get_autocast_gpu_dtype", "get_autocast_cpu_dtype", "set_autocast_gpu_dtype"),
            *("set_autocast_cpu_dtype", "is_autocast_cache_enabled"),
            *("set_autocast_cache_enabled", "clear_autocast_cache"),
        ),
        "beside PyTorch in tests/unit/test_autocast.py",
    ),
    **dict.fromkeys(
        (
            *("clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"),
            *("get_total_norm", "parameters_to_vector"),
            *("vector_to_parameters", "remove_weight_norm", "skip_init", "weight_norm"),
            *("PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence"),
            *("pad_packed_sequence", "pad_sequence", "unpack_sequence", "unpad_sequence"),
            *("BasePruningMethod", "CustomFromMask", "L1Unstructured", "LnStructured"),
            *("PruningContainer", "RandomStructured", "RandomUnstructured", "custom_from_mask"),
            *("global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured"),
            *("random_structured", "random_unstructured", "remove", "SyncBatchNorm"),
        ),
        "beside PyTorch in tests/unit/nn: test_nn_utils.py, test_clip_grad.py",
    ),
    **dict.fromkeys(
        (
            *("UninitializedBuffer", "UninitializedParameter", "LazyLinear"),
            *("LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d"),
            *("LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d"),
        ),
        "beside PyTorch in tests/unit/nn/test_lazy.py",
    ),
    **dict.fromkeys(
        (
            *("ParametrizationList", "cached", "is_parametrized", "register_parametrization"),
            *("remove_parametrizations", "type_before_parametrizations", "spectral_norm"),
        ),
        "beside PyTorch in tests/unit/nn/test_parametrize.py",
    ),
    **dict.fromkeys(
        ("checkpoint", "checkpoint_sequential"), "beside PyTorch in tests/unit/test_recomputing.py"
    ),
    **dict.fromkeys(
        ("download_url_to_file", "get_dir", "help", "list", "load_state_dict_from_url", "set_dir"),
        "needs files; tests/unit/compat/test_hub.py",
    ),
    **dict.fromkeys(
        (
            *("ProcessContext", "ProcessExitedException", "ProcessRaisedException", "SpawnContext"),
            *("get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy"),
            *("spawn", "start_processes"),
        ),
        "starts processes; tests/unit/test_multiprocessing.py",
    ),
    **dict.fromkeys(
        (
            *("ScriptFunction", "ScriptModule", "export", "ignore", "interface", "script"),
            *("script_if_tracing", "trace", "unused"),
        ),
        "compiles in PyTorch and nothing here; tests/unit/test_answers.py",
    ),
    **dict.fromkeys(
        ("is_available", "is_built", "version"),
        "tells of PyTorch's own build; tests/unit/test_answers.py",
    ),
    "is_macos_or_newer": "asks the library for Apple's GPUs: tests/unit/compat",
    "fake_quantize_per_tensor_affine": "tests/unit/compat/test_quantization.py, with gradients",
    "fake_quantize_per_channel_affine": "tests/unit/compat/test_quantization.py, with gradients",
    "set_printoptions": "tensors print their dtype here, as upstream does",
    "set_num_threads": "changes how fast, not what; test_threads looks at the number",
    "use_deterministic_algorithms": "each op has one algorithm",
    "are_deterministic_algorithms_enabled": "tests/unit/functional/test_spellings.py",
    "is_deterministic_algorithms_warn_only_enabled": "tests/unit/functional/test_spellings.py",
    "cuda": "needs a GPU",
    "pin_memory": "needs a GPU in PyTorch",
}
