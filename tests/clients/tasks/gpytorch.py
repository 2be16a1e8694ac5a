"""Exact, sparse, multitask and deep-kernel processes, classification, sixteen kernels, solvers."""

import numpy as np

from tests.clients.inputs import fill, numbers

PACKAGES = "gpytorch"
TOLERANCE = 1e-3


def _exact(gpytorch, x, y, likelihood, mean, covariance, joint=None):
    """Return an exact process of these parts, and its marginal likelihood."""
    joint = joint or gpytorch.distributions.MultivariateNormal

    class Process(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(x, y, likelihood)
            self.mean, self.covariance = mean, covariance

        def forward(self, x):
            return joint(self.mean(x), self.covariance(x))

    model = Process()
    return model, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)


def _train(torch, model, objective, x, y, steps=10, lr=0.1):
    parameters = {id(p): p for p in [*model.parameters(), *objective.parameters()]}
    optimizer, losses = torch.optim.Adam(parameters.values(), lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def task_exact(torch):
    import gpytorch

    x = torch.linspace(0, 1, 20)
    y = torch.sin(6 * x) + 0.2 * torch.tensor(numbers(20))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    mean = gpytorch.means.ConstantMean()
    model, objective = _exact(gpytorch, x, y, likelihood, mean, covariance)
    losses = _train(torch, model, objective, x, y, steps=20)
    model.eval()
    likelihood.eval()
    at = torch.linspace(0, 1, 7)
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = likelihood(model(at))
        more = model.get_fantasy_model(torch.tensor([0.33]), torch.tensor([0.5]))
        return {
            "losses": losses,
            "mean": found.mean,
            "bounds": list(found.confidence_region()),
            "covariance": found.covariance_matrix,
            "density": found.log_prob(0 * at),
            "draws": list(found.rsample(torch.Size([3])).shape),
            "fantasy": more(at).mean,
        }


def task_multitask(torch):
    import gpytorch

    x = torch.linspace(0, 1, 15)
    y = torch.stack([torch.sin(x * 6), torch.cos(x * 6)], -1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2)
    mean = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
    covariance = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), 2, rank=1)
    factor = torch.tensor([[0.5], [-0.3]])
    covariance.task_covar_module.initialize(covar_factor=factor, raw_var=torch.zeros(2))
    joint = gpytorch.distributions.MultitaskMultivariateNormal
    model, objective = _exact(gpytorch, x, y, likelihood, mean, covariance, joint)
    losses = _train(torch, model, objective, x, y)
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        found = likelihood(model(torch.linspace(0, 1, 5)))
    return {"losses": losses, "mean": found.mean, "bounds": list(found.confidence_region())}


def task_deep_kernel(torch):
    import gpytorch

    kernels, priors = gpytorch.kernels, gpytorch.priors
    x = torch.tensor(numbers(30, 2))
    y = torch.sin(x.sum(-1))
    net = fill(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))

    class Deep(gpytorch.kernels.Kernel):
        def __init__(self):
            super().__init__()
            self.net, self.inner = net, kernels.ScaleKernel(kernels.RBFKernel(ard_num_dims=2))
            prior = priors.GammaPrior(3.0, 6.0)
            self.inner.base_kernel.register_prior("lengths", prior, "lengthscale")
            self.inner.register_prior("scale", priors.LogNormalPrior(0.0, 1.0), "outputscale")

        def forward(self, a, b, **options):
            return self.inner(self.net(a), self.net(b), **options)

    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-3),
        noise_prior=priors.NormalPrior(0.1, 1.0),
    )
    mean = gpytorch.means.ConstantMean()
    model, objective = _exact(gpytorch, x, y, likelihood, mean, Deep())
    losses = _train(torch, model, objective, x, y, steps=8, lr=0.02)
    return {"losses": losses, "noise": likelihood.noise}


def task_variational(torch):
    import gpytorch

    parts = gpytorch.variational
    x = torch.tensor(numbers(30, 2))
    y, found = x.sum(-1), {}
    gaussian, elbo = gpytorch.likelihoods.GaussianLikelihood, gpytorch.mlls.VariationalELBO
    whitened, plain = parts.VariationalStrategy, parts.UnwhitenedVariationalStrategy
    kinds = {
        "cholesky": (parts.CholeskyVariationalDistribution, whitened, elbo, gaussian, y),
        "mean field": (
            *(parts.MeanFieldVariationalDistribution, whitened),
            *(gpytorch.mlls.PredictiveLogLikelihood, gaussian, y),
        ),
        "delta": (parts.DeltaVariationalDistribution, plain, elbo, gaussian, y),
        "natural": (parts.NaturalVariationalDistribution, whitened, elbo, gaussian, y),
        "classes": (
            *(parts.CholeskyVariationalDistribution, whitened, elbo),
            *(gpytorch.likelihoods.BernoulliLikelihood, (y > 0).float()),
        ),
    }
    for name, (family, strategy, objective, likelihood, target) in kinds.items():

        class Process(gpytorch.models.ApproximateGP):
            def __init__(self, points, family=family, strategy=strategy):
                inner = family(points.size(0))
                inner.mean_init_std = 0.0
                super().__init__(strategy(self, points, inner, learn_inducing_locations=True))
                self.mean = gpytorch.means.ConstantMean()
                matern = gpytorch.kernels.MaternKernel(2.5)
                self.covariance = gpytorch.kernels.ScaleKernel(matern)

            def forward(self, x):
                mean, covariance = self.mean(x), self.covariance(x)
                return gpytorch.distributions.MultivariateNormal(mean, covariance)

        model = Process(x[:5].clone())
        found[name] = _train(torch, model, objective(likelihood(), model, 30), x, target, 8, 0.05)
        model.eval()
        found[f"{name} predicts"] = [model(x[:3]).mean, model(x[:3]).variance]
    return found


def task_kernels(torch):
    import gpytorch

    made, x = gpytorch.kernels, torch.tensor(numbers(30, 2))
    kinds = {
        "rbf": made.RBFKernel(ard_num_dims=2),
        **{f"matern {nu}": made.MaternKernel(nu) for nu in (0.5, 1.5, 2.5)},
        "periodic": made.PeriodicKernel(),
        "cosine": made.CosineKernel(),
        "linear": made.LinearKernel(),
        "polynomial": made.PolynomialKernel(2),
        "quadratic": made.RQKernel(),
        "sum": made.RBFKernel() + made.LinearKernel(),
        "product": made.RBFKernel() * made.PeriodicKernel(),
        "piecewise": made.PiecewisePolynomialKernel(q=2),
        "constant": made.ConstantKernel(),
        "arc": made.ArcKernel(made.MaternKernel(2.5), ard_num_dims=2),
        "cylinder": made.CylindricalKernel(2, made.MaternKernel(2.5)),
        "grid": made.GridInterpolationKernel(made.RBFKernel(), 8, 2, [(-4, 4), (-4, 4)]),
    }
    found = {}
    for name, kernel in kinds.items():
        at = x / 10 if name == "cylinder" else x
        whole = kernel(at).to_dense()
        whole.square().sum().backward()
        found[name], found[f"{name} part"] = whole, kernel(at[:4], at[5:9]).to_dense()
        grads = [p.grad for p in kernel.parameters() if p.grad is not None]
        found[f"{name} gradients"] = grads
    return {name: value for name, value in found.items() if value != []}


def task_operators(torch):
    from gpytorch.settings import cg_tolerance, max_cholesky_size
    from linear_operator import operators, to_linear_operator

    matrix = torch.eye(6) * 3 + torch.ones(6, 6)
    lazy, right = to_linear_operator(matrix).add_jitter(0.1), torch.arange(6.0).unsqueeze(-1)
    second = to_linear_operator(torch.eye(2) + 1)
    kronecker = operators.KroneckerProductLinearOperator(to_linear_operator(matrix), second)
    found = {
        "solve": lazy.solve(right),
        "determinant": lazy.inv_quad_logdet(torch.ones(6, 1), logdet=True)[1],
        "diagonal": lazy.diagonal(),
        "root": lazy.root_decomposition().to_dense(),
        "eigenvalues": lazy.eigh()[0],
        "kronecker": kronecker.matmul(torch.tensor(np.ones((12, 1), np.float32))),
        "toeplitz": operators.ToeplitzLinearOperator(torch.tensor([3.0, 1.0, 0.5])).to_dense(),
    }
    with max_cholesky_size(2), cg_tolerance(1e-4):
        return found | {"conjugate gradients": lazy.solve(right)}
