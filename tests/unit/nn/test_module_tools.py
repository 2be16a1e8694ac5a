"""Tools for whole modules beside PyTorch's: fused norms, calls with other parameters, hooks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

LIBRARIES = (flow, torch)


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def copied(ours: Any, theirs: Any) -> None:
    """Give PyTorch's module the state of ours."""
    state = {k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()}
    theirs.load_state_dict(state)


def with_statistics(norm: Any) -> Any:
    count = norm.num_features
    norm.running_mean.copy_(flow.linspace(-1, 1, count))
    norm.running_var.copy_(flow.linspace(0.5, 2, count))
    norm.weight.data.copy_(flow.linspace(2, 3, count))
    norm.bias.data.copy_(flow.linspace(-2, 0, count))
    return norm.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_a_fused_convolution_computes_both(bias: bool, transpose: bool) -> None:
    kind = "ConvTranspose2d" if transpose else "Conv2d"
    conv = getattr(flow.nn, kind)(3, 4, 2, bias=bias).eval()
    norm = with_statistics(flow.nn.BatchNorm2d(4))
    x = flow.randn(2, 3, 5, 5)
    fused = flow.nn.utils.fuse_conv_bn_eval(conv, norm, transpose)
    same(fused(x), norm(conv(x)))
    assert fused is not conv and isinstance(fused.weight, flow.nn.Parameter)
    with pytest.raises(RuntimeError, match="Fusion only for eval"):
        flow.nn.utils.fusion.fuse_conv_bn_eval(conv.train(), norm)


def test_a_fused_linear_layer_computes_both() -> None:
    linear, norm = flow.nn.Linear(3, 4).eval(), with_statistics(flow.nn.BatchNorm1d(4))
    x = flow.randn(5, 3)
    same(flow.nn.utils.fuse_linear_bn_eval(linear, norm)(x), norm(linear(x)))
    with pytest.raises(RuntimeError, match="got 4 and 3"):
        flow.nn.utils.fuse_linear_bn_eval(linear, with_statistics(flow.nn.BatchNorm1d(3)))


def test_a_module_is_called_with_other_parameters() -> None:
    model = flow.nn.Sequential(flow.nn.Linear(2, 3), flow.nn.BatchNorm1d(3))
    own = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    new = {
        "0.weight": flow.randn(3, 2, requires_grad=True),
        "1.running_mean": flow.zeros(3),
        "1.running_var": flow.ones(3),
    }
    x = flow.randn(4, 2)
    out = flow.nn.utils.stateless.functional_call(model, new, (x,))
    hidden = (x @ new["0.weight"].t() + model[0].bias).detach().numpy()
    wanted = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    np.testing.assert_allclose(out.detach().numpy(), wanted, rtol=1e-3, atol=1e-4)
    (out * flow.arange(3)).sum().backward()
    assert new["0.weight"].grad is not None and model[0].weight.grad is None
    assert np.abs(new["1.running_mean"].numpy()).max() > 0  # the statistics given are moved
    for name, value in model.state_dict().items():
        if name != "1.num_batches_tracked":
            np.testing.assert_array_equal(value.numpy(), own[name])


def test_shared_parameters_are_exchanged_together() -> None:
    for lib in LIBRARIES:
        model = lib.nn.ModuleDict({"a": lib.nn.Linear(2, 2), "b": lib.nn.Linear(2, 2)})
        model["b"].weight = model["a"].weight

        class Both(lib.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self, parts: Any) -> None:
                super().__init__()
                self.parts = parts

            def forward(self, x: Any) -> Any:
                return self.parts["b"](self.parts["a"](x) * 0 + 1)

        call = (
            flow.nn.utils.stateless.functional_call if lib is flow else torch.func.functional_call
        )
        both = Both(model)
        new = {"parts.a.weight": lib.full((2, 2), 5.0), "parts.b.bias": lib.zeros(2)}
        assert call(both, new, lib.ones(1, 2)).tolist() == [[10.0, 10.0]]
        with pytest.raises(RuntimeError):
            call(both, new, lib.ones(1, 2), strict=True)
        if lib is flow:
            with pytest.raises(RuntimeError, match=r"unexpected keys \['parts.c.weight'\]"):
                call(both, {"parts.c.weight": lib.ones(2, 2)}, lib.ones(1, 2))
    with pytest.raises(TypeError, match="argument 'module'"):
        flow.nn.utils.stateless.functional_call(3, {}, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ["Linear", "Conv2d", "ConvTranspose2d"])
def test_spectral_norm_is_that_of_torch(layer: str) -> None:
    arguments = (3, 4) if layer == "Linear" else (3, 4, 2)
    ours = flow.nn.utils.spectral_norm(getattr(flow.nn, layer)(*arguments), n_power_iterations=2)
    theirs = torch.nn.utils.spectral_norm(
        getattr(torch.nn, layer)(*arguments), n_power_iterations=2
    )
    copied(ours, theirs)
    x = np.random.default_rng(0).normal(size=(2, 3) if layer == "Linear" else (2, 3, 4, 4))
    for _ in range(2):
        y, t = ours(flow.tensor(x.astype(np.float32))), theirs(torch.tensor(x.astype(np.float32)))
        same(y, t)
    y.square().sum().backward()
    t.square().sum().backward()
    same(ours.weight_orig.grad, theirs.weight_orig.grad)
    same(ours.weight_u, theirs.weight_u)
    same(ours.weight_v, theirs.weight_v)
    weight = ours.eval()(flow.tensor(x.astype(np.float32))) is not None and ours.weight.detach()
    flow.nn.utils.remove_spectral_norm(ours)
    same(ours.weight, weight)
    assert sorted(ours.state_dict()) == ["bias", "weight"]
    with pytest.raises(ValueError, match="not found"):
        flow.nn.utils.remove_spectral_norm(ours)


def test_memory_formats_of_weights_change_nothing() -> None:
    model = flow.nn.Conv2d(2, 3, 2)
    convert = flow.nn.utils.convert_conv2d_weight_memory_format
    assert convert(model, flow.channels_last) is model


@pytest.mark.parametrize(
    ("container", "method"),
    [("ModuleDict", "update"), ("ModuleList", "extend"), ("ParameterDict", "update"),
     ("ParameterList", "extend")],
)  # fmt: skip
def test_an_empty_container_does_not_call_the_methods_of_its_subclass(
    container: str, method: str
) -> None:
    """Collections of metrics have an `update` that needs members which they set later."""
    called: list[object] = []
    kind = type(
        "Own", (getattr(flow.nn, container),), {method: lambda _, given: called.append(given)}
    )
    assert len(kind()) == 0 and not called
    kind([])
    assert called == [[]]
