"""Distributions, constraints and transforms as programs written for PyTorch extend them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

D = flow.distributions
C = flow.distributions.constraints


class Tagged(D.Normal):  # type: ignore[misc]
    """A family of a program's own, whose instances begin without `__init__`."""

    def __init__(self, loc: flow.Tensor, tag: str) -> None:
        self.tag = tag
        super().__init__(loc, 1.0)


def test_a_family_with_its_own_constructor_says_that_it_needs_expand() -> None:
    with pytest.raises(NotImplementedError, match=r"custom \.expand"):
        Tagged(flow.zeros(2), "a").expand((3, 2))


def test_parameters_that_are_moved_are_the_ones_that_draws_use() -> None:
    class Moved(flow.nn.Module, D.Gamma):  # type: ignore[misc]
        """A module whose buffers are the parameters, like the priors of gpytorch."""

        def __init__(self) -> None:
            flow.nn.Module.__init__(self)
            D.Gamma.__init__(self, 3.0, 6.0)
            for name in ("concentration", "rate"):
                value = getattr(self, name)
                delattr(self, name)
                self.register_buffer(name, value)

    made = Moved().double()
    assert made.sample((2,)).dtype == flow.float64
    made.load_state_dict({"concentration": flow.tensor(300.0), "rate": flow.tensor(3.0)})
    assert abs(float(made.sample((500,)).mean()) - 100) < 3
    want = torch.distributions.Gamma(300.0, 3.0).log_prob(torch.tensor(99.0))
    assert abs(float(made.log_prob(flow.tensor(99.0))) - float(want)) < 1e-3


def test_a_normal_of_vectors_without_init_uses_its_own_factor() -> None:
    class Lazy(D.MultivariateNormal):  # type: ignore[misc]
        """A family of gpytorch's kind: its factor is a property, and it calls no `__init__`."""

        def __init__(self, loc: flow.Tensor, factor: flow.Tensor) -> None:
            self.loc, self._factor = loc, factor
            super(D.MultivariateNormal, self).__init__(loc.shape[:-1], loc.shape[-1:], False)

        @property
        def _unbroadcasted_scale_tril(self) -> Any:
            return self._factor

    factor = np.array([[1.0, 0.0], [0.5, 2.0]])
    made = Lazy(flow.zeros(2).double(), flow.tensor(factor))
    np.testing.assert_allclose(made.covariance_matrix.numpy(), factor @ factor.T)
    np.testing.assert_allclose(made.variance.numpy(), np.diag(factor @ factor.T))
    want = torch.distributions.MultivariateNormal(
        torch.zeros(2).double(), scale_tril=torch.tensor(factor)
    )
    value = np.array([0.3, -0.4])
    got = made.log_prob(flow.tensor(value))
    np.testing.assert_allclose(got.numpy(), want.log_prob(torch.tensor(value)).numpy())


def test_one_factor_serves_many_values() -> None:
    place, factor = np.zeros(3), np.tril(np.full((3, 3), 0.5)) + np.eye(3)
    values = np.random.default_rng(0).normal(size=(4, 5, 3))
    found = [
        m.distributions.MultivariateNormal(m.tensor(place), scale_tril=m.tensor(factor)).log_prob(
            m.tensor(values)
        )
        for m in (flow, torch)
    ]
    np.testing.assert_allclose(found[0].numpy(), found[1].numpy())


def test_parameters_of_others_are_checked() -> None:
    class Mine(D.Distribution):  # type: ignore[misc]
        arg_constraints = {"rate": C.positive, "whole": C.dependent}

        def __init__(self, rate: float) -> None:
            self.rate = flow.tensor(rate)
            super().__init__()

    assert Mine(1.0).batch_shape == ()
    with pytest.raises(ValueError, match="parameter rate"):
        Mine(-1.0)


def test_classes_tell_that_their_support_depends() -> None:
    for name in ("Uniform", "Binomial", "Pareto", "Categorical", "Independent", "Multinomial"):
        assert C.is_dependent(getattr(D, name).support), name
    assert D.Uniform(0.0, 2.0).support.upper_bound.item() == 2.0
    assert not C.is_dependent(D.Normal.support)


def test_a_transform_keeps_its_last_pair() -> None:
    class Counted(D.Transform):  # type: ignore[misc]
        """y = 2 x, without an inverse of its own."""

        bijective = True
        calls = 0

        def _call(self, x: flow.Tensor) -> flow.Tensor:
            Counted.calls += 1
            return 2 * x

    f, x = Counted(cache_size=1), flow.ones(3)
    y = f(x)
    assert f(x) is y and f.inv(y) is x and Counted.calls == 1
    assert f.inv.inv is f and f.inv is f.inv
    with pytest.raises(NotImplementedError, match="no inverse"):
        f.inv(flow.ones(3))
    held = weakref.ref(f.inv)
    assert held() is None
    chain = D.ComposeTransform([f, D.ExpTransform()]).with_cache(1)
    z = chain(x)
    assert chain.inv(z) is x and chain.log_abs_det_jacobian is not None


def test_transforms_are_equal_by_their_parts() -> None:
    affine = D.AffineTransform
    assert D.ExpTransform() == D.ExpTransform() and D.ExpTransform() != D.TanhTransform()
    assert affine(0.0, flow.ones(2)) == affine(0.0, flow.ones(2)) != affine(1.0, flow.ones(2))
    assert D.ExpTransform().inv == D.ExpTransform().inv != D.ExpTransform()
    chains = [D.ComposeTransform([D.ExpTransform(), affine(0, s)]) for s in (2, 2, 3)]
    assert chains[0] == chains[1] != chains[2]
    base = D.Normal(flow.zeros(2), flow.ones(2))
    pair = [D.TransformedDistribution(base, [D.ExpTransform()]) for _ in range(2)]
    assert D.kl_divergence(*pair).tolist() == [0.0, 0.0]


def test_parameters_of_transforms_widen_the_batch() -> None:
    for m in (flow, torch):
        d = m.distributions
        made = d.TransformedDistribution(
            d.Normal(m.tensor(0.0), m.tensor(1.0)), [d.AffineTransform(m.zeros(3), m.ones(3))]
        )
        assert tuple(made.batch_shape) == (3,) and tuple(made.sample((4,)).shape) == (4, 3)


def test_registries_take_what_programs_add() -> None:
    class Even(C.Constraint):  # type: ignore[misc]
        pass

    registry = D.constraint_registry
    with pytest.raises(NotImplementedError, match="Even"):
        D.biject_to(Even())

    @D.biject_to.register(Even)  # type: ignore[untyped-decorator]
    def _(constraint: Even) -> Any:
        return D.ExpTransform()

    assert isinstance(D.biject_to(Even()), D.ExpTransform)
    with pytest.raises(ValueError, match="Constraint"):
        registry.transform_to.register(3, lambda _: None)


DRAWN: dict[str, tuple[Any, ...]] = {
    "ContinuousBernoulli": (0.3,),
    "FisherSnedecor": (8.0, 12.0),
    "GeneralizedPareto": (1.0, 2.0, 0.1),
    "InverseGamma": (6.0, 3.0),
    "Kumaraswamy": (2.0, 3.0),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_the_moments_that_pytorch_gives(name: str) -> None:
    flow.manual_seed(0)
    args = DRAWN[name]
    drawn = getattr(D, name)(*(flow.tensor(a) for a in args)).sample((40000,))
    want = getattr(torch.distributions, name)(*(torch.tensor(a) for a in args))
    assert abs(float(drawn.mean()) - float(want.mean)) < 0.03 * float(want.mean)
    assert abs(float(drawn.var()) - float(want.variance)) < 0.12 * float(want.variance)


def test_angles_gather_around_their_place() -> None:
    flow.manual_seed(1)
    for loc, concentration in ((0.5, 3.0), (-2.0, 0.4), (0.0, 1e-6)):
        made = D.VonMises(flow.tensor(loc), flow.tensor(concentration))
        drawn = made.sample((30000,)).numpy()
        assert abs(drawn).max() <= np.pi + 1e-5
        length = 1 - float(torch.distributions.VonMises(loc, concentration).variance)
        point = np.exp(1j * drawn).mean()
        assert abs(point - length * np.exp(1j * loc)) < 0.02


def test_draws_of_matrices_have_their_means() -> None:
    flow.manual_seed(2)
    factor = np.array([[1.0, 0.0], [0.5, 2.0]], "f")
    made = D.Wishart(flow.tensor(5.0), scale_tril=flow.tensor(factor))
    drawn = made.rsample((20000,)).numpy()
    np.testing.assert_allclose(drawn.mean(0), 5 * factor @ factor.T, rtol=0.05)
    np.testing.assert_allclose(drawn.var(0), made.variance.numpy(), rtol=0.1)
    low = D.LowRankMultivariateNormal(
        flow.zeros(3), flow.tensor([[1.0], [2.0], [0.5]]), flow.tensor([0.1, 0.2, 0.3])
    )
    cov = np.cov(low.sample((30000,)).numpy().T)
    np.testing.assert_allclose(cov, low.covariance_matrix.numpy(), atol=0.08)
    factors = D.LKJCholesky(3, 2.0).sample((20000,)).numpy()
    corr = factors @ factors.transpose(0, 2, 1)
    np.testing.assert_allclose(corr.mean(0), np.eye(3), atol=0.02)
    # Each correlation is 2 b - 1 of a Beta number with both shapes concentration - 1 + dim / 2.
    assert abs(corr[:, 0, 1].var() - 1 / (2 * 2.5 + 1)) < 0.01


def test_the_mode_of_kumaraswamy_is_where_its_density_is_flat() -> None:
    made = D.Kumaraswamy(flow.tensor(2.0).double(), flow.tensor(3.0).double())
    at = made.mode.requires_grad_()
    (slope,) = flow.autograd.grad(made.log_prob(at), at)
    assert abs(float(slope)) < 1e-9


def test_triangles_go_to_vectors_and_back() -> None:
    utils = flow.distributions.utils
    for diag in (-1, 0, 1):
        found = [
            m.distributions.utils.vec_to_tril_matrix(
                m.arange(2 * {-1: 3, 0: 6, 1: 8}[diag]).reshape(2, -1).float(), diag
            ).tolist()
            for m in (flow, torch)
        ]
        assert found[0] == found[1]
    whole = flow.arange(9).reshape(3, 3)
    assert utils.tril_matrix_to_vec(whole, -1).tolist() == [3, 6, 7]
    with pytest.raises(ValueError, match="no triangle"):
        utils.vec_to_tril_matrix(flow.ones(5))


MOCKED = """
import oneflow.mock_torch as mock
mock.enable(lazy=True, mock_version="2.6.0")
import torch
from torch.distributions import *
from torch.distributions.constraints import *
from torch.distributions.transforms import *
names = vars(torch.distributions)
assert names["LKJCholesky"] is LKJCholesky and names["Normal"] is torch.distributions.Normal
assert torch.optim.__dict__["SGD"] is torch.optim.SGD
assert corr_cholesky.event_dim == 2 and StackTransform and biject_to(positive)
print(len([k for k in names.values() if isinstance(k, type) and issubclass(k, Distribution)]))
"""


def test_all_names_are_in_the_modules_of_the_mock(tmp_path: Any) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", MOCKED], capture_output=True, text=True, timeout=120
    )
    wanted = [getattr(torch.distributions, n) for n in torch.distributions.__all__]
    kinds = [k for k in wanted if isinstance(k, type)]
    count = sum(issubclass(k, torch.distributions.Distribution) for k in kinds)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == count
