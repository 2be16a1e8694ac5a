"""SVI by hand and with nine automatic guides, enumeration, HMMs, flows, NUTS and HMC."""

import numpy as np

from tests.clients.inputs import fill, numbers, shares

PACKAGES = "pyro-ppl"
TOLERANCE = 1e-3


def _share_noise(torch):
    """Let normal draws of both libraries be the same numbers."""
    noise = np.random.default_rng(1)

    def rsample(self, sample_shape=()):
        shape = tuple(self._extended_shape(sample_shape))
        return self.loc + self.scale * torch.tensor(noise.normal(size=shape), dtype=self.loc.dtype)

    torch.distributions.Normal.rsample = rsample
    torch.distributions.Normal.sample = lambda self, sample_shape=(): rsample(
        self, sample_shape
    ).detach()


def _normal_model(torch):
    import pyro
    import pyro.distributions as dist

    def model(data):
        mean = pyro.sample("mean", dist.Normal(torch.tensor(0.0), torch.tensor(10.0)))
        width = pyro.sample("width", dist.HalfCauchy(torch.tensor(1.0)))
        with pyro.plate("all", len(data)):
            pyro.sample("x", dist.Normal(mean, width), obs=data)

    return model


def task_guide_by_hand(torch):
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

    _share_noise(torch)
    data, found = torch.tensor(numbers(20) + 2), {}

    def model(data):
        mean = pyro.sample("mean", dist.Normal(torch.tensor(0.0), torch.tensor(10.0)))
        with pyro.plate("all", len(data)):
            pyro.sample("x", dist.Normal(mean, torch.tensor(1.0)), obs=data)

    def guide(data):
        place = pyro.param("place", torch.tensor(0.0))
        positive = dist.constraints.positive
        width = pyro.param("width", torch.tensor(1.0), constraint=positive)
        pyro.sample("mean", dist.Normal(place, width))

    losses = {"trace": Trace_ELBO(), "mean field": TraceMeanField_ELBO()}
    losses["three"] = Trace_ELBO(num_particles=3)
    for name, loss in losses.items():
        pyro.clear_param_store()
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), loss)
        found[name] = [svi.step(data) for _ in range(30)]
        found[f"{name} found"] = [pyro.param("place"), pyro.param("width")]
    return found


def task_automatic_guides(torch):
    import pyro
    import pyro.infer.autoguide as guides
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import init_to_value

    _share_noise(torch)
    data, found = torch.tensor(numbers(20) + 2), {}
    begin = init_to_value(values={"mean": torch.tensor(0.5), "width": torch.tensor(1.5)})
    for name in ("AutoDelta", "AutoNormal", "AutoLaplaceApproximation"):
        pyro.clear_param_store()
        guide = getattr(guides, name)(_normal_model(torch), init_loc_fn=begin)
        svi = SVI(_normal_model(torch), guide, pyro.optim.ClippedAdam({"lr": 0.05}), Trace_ELBO())
        found[name] = [svi.step(data) for _ in range(15)]
        if name != "AutoLaplaceApproximation":
            found[f"{name} median"] = guide.median(data)["mean"]
    options = {"AutoLowRankMultivariateNormal": {"rank": 1}, "AutoIAFNormal": {"hidden_dim": [4]}}
    drawn = ("AutoDiagonalNormal", "AutoMultivariateNormal", "AutoGaussian", "AutoStructured")
    for name in (*drawn, *options):  # their draws differ: only that they run is compared
        pyro.clear_param_store()
        guide = getattr(guides, name)(_normal_model(torch), **options.get(name, {}))
        svi = SVI(_normal_model(torch), guide, pyro.optim.ClippedAdam({"lr": 0.05}), Trace_ELBO())
        found[name] = bool(np.isfinite([svi.step(data) for _ in range(15)]).all())
    return found


def task_enumeration(torch):
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate, infer_discrete

    pyro.clear_param_store()
    data = torch.tensor([0.0, 1.0, 10.0, 11.0, 12.0])

    @config_enumerate
    def model(data):
        weights = pyro.param("weights", torch.ones(2) / 2, constraint=dist.constraints.simplex)
        places = pyro.param("places", torch.tensor([1.0, 8.0]))
        with pyro.plate("all", len(data)):
            kind = pyro.sample("kind", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(places[kind], torch.tensor(2.0)), obs=data)

    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    svi = SVI(model, lambda data: None, pyro.optim.Adam({"lr": 0.1}), elbo)
    losses = [svi.step(data) for _ in range(20)]
    best = infer_discrete(model, first_available_dim=-2, temperature=0)
    trace = pyro.poutine.trace(best).get_trace(data)
    found = {"losses": losses, "places": pyro.param("places"), "weights": pyro.param("weights")}
    return found | {"kinds": trace.nodes["kind"]["value"]}


def task_sequences_and_families(torch):
    import pyro.distributions as dist

    normal = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
    single = dist.Normal(torch.zeros(1), torch.ones(1)).to_event(1)
    hidden = [torch.tensor(numbers(*s, seed=i)) for i, s in enumerate([(3,), (3, 3), (3,), (3,)])]
    discrete = dist.DiscreteHMM(*hidden[:2], dist.Normal(hidden[2], hidden[3].exp()))
    steps = torch.tensor(numbers(2, 2, seed=5)) * 0.3, torch.tensor(numbers(2, 1, seed=6))
    linear = dist.GaussianHMM(normal, steps[0], normal, steps[1], single)
    found = {
        "discrete": discrete.log_prob(torch.tensor(numbers(7))),
        "linear": linear.log_prob(torch.tensor(numbers(6, 1))),
    }
    real, positive = torch.tensor(numbers(3)), torch.tensor(0.2 + shares(3))
    count = torch.tensor([1.0, 0.0, 3.0])
    families = {
        "AsymmetricLaplace": ((real, positive, positive), real),
        "BetaBinomial": ((positive, positive, 5), count),
        "DirichletMultinomial": ((positive, 4), count),
        "GammaPoisson": ((positive, positive), count),
        "InverseGamma": ((positive, positive), positive),
        "Logistic": ((real, positive), real),
        "LowRankMultivariateNormal": ((real, torch.tensor(numbers(3, 2)), positive), real),
        "SoftLaplace": ((real, positive), real),
        "Uniform": ((real - 3, real + 3), real),
        "VonMises": ((real, positive), real),
    }
    for name, (parameters, value) in families.items():
        made = getattr(dist, name)(*parameters)
        found[name] = made.log_prob(value)
        found[f"{name} wide"] = list(made.expand((4, *made.batch_shape)).sample().shape)
        found[f"{name} masked"] = made.mask(torch.tensor(False)).log_prob(value)
    return found


def task_transforms(torch):
    import pyro.distributions as dist
    import pyro.distributions.transforms as made

    x, found = torch.tensor(numbers(5, 4)), {}
    kinds = {
        "planar": made.Planar(4),
        "radial": made.Radial(4),
        "spline": made.Spline(4, count_bins=4),
        "householder": made.Householder(4, count_transforms=2),
        "coupling": made.affine_coupling(4, hidden_dims=[8]),
        "matrix": made.MatrixExponential(4),
        "leaky": made.LeakyReLUTransform(),
        "haar": made.HaarTransform(dim=-1),
        "cosine": made.DiscreteCosineTransform(),
        "ordered": made.OrderedTransform(),
        "permuted": made.Permute(torch.tensor([3, 1, 0, 2])),
    }
    for name, f in kinds.items():
        if hasattr(f, "named_parameters"):
            fill(f)
        y = f(x)
        found[name], found[f"{name} size"] = y, f.log_abs_det_jacobian(x, y)
    base = dist.Normal(torch.zeros(4), torch.ones(4)).to_event(1)
    coupling = fill(made.affine_coupling(4, hidden_dims=[8]))
    flow = dist.TransformedDistribution(base, [coupling, kinds["permuted"]])
    optimizer = torch.optim.Adam(coupling.parameters(), 0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        optimizer.step()
        flow.clear_cache()
        losses.append(loss.item())
    return found | {"losses": losses}


def task_markov_chains(torch):
    import pyro
    import pyro.distributions as dist
    from pyro.infer import HMC, MCMC, NUTS, Predictive
    from pyro.infer.mcmc.util import initialize_model

    pyro.set_rng_seed(0)
    weights = np.array([1.0, -2.0, 0.5], np.float32)
    x = torch.tensor(numbers(30, 3))
    y = torch.tensor(numbers(30, 3) @ weights + 0.1 * numbers(30, seed=1))

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
        width = pyro.sample("width", dist.HalfNormal(torch.tensor(1.0)))
        with pyro.plate("all", x.shape[0]):
            return pyro.sample("y", dist.Normal((x * w).sum(-1), width), obs=y)

    begin = {"w": torch.zeros(3), "width": torch.zeros(())}
    _, potential, _, _ = initialize_model(model, model_args=(x, y), initial_params=begin)
    place = {"w": torch.tensor([0.1, -0.2, 0.3]), "width": torch.tensor(0.2)}
    found = {"potential": potential(place)}
    kernels = {"nuts": NUTS(model), "hmc": HMC(model, step_size=0.05, num_steps=5)}
    for name, kernel in kernels.items():
        chain = MCMC(kernel, num_samples=60, warmup_steps=40, disable_progbar=True)
        chain.run(x, y)
        drawn = chain.get_samples()
        error = np.abs(drawn["w"].mean(0).numpy() - weights).max()
        found[f"{name} is near"] = bool(error < 0.15)
        found[f"{name} predicts"] = list(Predictive(model, drawn)(x)["y"].shape)
    return found
