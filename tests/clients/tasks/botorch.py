"""Fitted processes, ten acquisition functions and their best points, a loop of three rounds."""

import numpy as np

PACKAGES = "botorch"
TOLERANCE = 1e-3


def _points(*shape, seed=0):
    return np.random.default_rng(seed).uniform(size=shape)


def _fitted(torch, x, y):
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _target(x):
    return -((x - 0.5) ** 2).sum(-1, keepdim=True)


def task_acquisition(torch):
    from botorch import acquisition as made
    from botorch.optim import optimize_acqf

    x = torch.tensor(_points(10, 2))
    y = _target(x)
    model, at = _fitted(torch, x, y), torch.tensor([[[0.3, 0.4]], [[0.5, 0.55]]]).double()
    best, bounds = y.max(), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    kinds = {
        "ei": made.ExpectedImprovement(model, best),
        "log ei": made.LogExpectedImprovement(model, best),
        "ucb": made.UpperConfidenceBound(model, beta=0.1),
        "pi": made.ProbabilityOfImprovement(model, best),
        "mean": made.PosteriorMean(model),
    }
    found = {"posterior": model.posterior(at).mean, "variance": model.posterior(at).variance}
    for name, function in kinds.items():
        starts = torch.tensor(_points(4, 1, 2, seed=1))
        found[name] = function(at)
        _, found[f"{name} best"] = optimize_acqf(
            function, bounds, q=1, num_restarts=4, batch_initial_conditions=starts
        )
    return found


def task_batches(torch):
    from botorch import acquisition as made
    from botorch.optim import optimize_acqf
    from botorch.sampling import IIDNormalSampler

    x = torch.tensor(_points(10, 2))
    y = _target(x)
    model, at = _fitted(torch, x, y), torch.tensor(_points(3, 2, 2, seed=2))
    best, bounds = y.max(), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    kinds = {
        "q ei": lambda s: made.qExpectedImprovement(model, best, sampler=s),
        "q log ei": lambda s: made.qLogExpectedImprovement(model, best, sampler=s),
        "q ucb": lambda s: made.qUpperConfidenceBound(model, beta=0.1, sampler=s),
        "q simple regret": lambda s: made.qSimpleRegret(model, sampler=s),
        "q pi": lambda s: made.qProbabilityOfImprovement(model, best, sampler=s),
    }
    found = {}
    for name, make in kinds.items():
        sampler = IIDNormalSampler(torch.Size([16]))
        function = make(sampler)
        function(at)
        noise = np.random.default_rng(3).normal(size=tuple(sampler.base_samples.shape))
        sampler.base_samples.copy_(torch.tensor(noise))
        found[name] = function(at)
        starts = torch.tensor(_points(2, 2, 2, seed=4))
        points, _ = optimize_acqf(
            function, bounds, q=2, num_restarts=2, batch_initial_conditions=starts
        )
        found[f"{name} points"] = list(points.shape)
    return found


def task_loop(torch):
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    x, bounds = torch.tensor(_points(10, 2)), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    y = _target(x)
    for _ in range(3):
        function = LogExpectedImprovement(_fitted(torch, x, y), y.max())
        point, _ = optimize_acqf(function, bounds, q=1, num_restarts=2, raw_samples=16)
        x, y = torch.cat([x, point]), torch.cat([y, _target(point)])
    return {"is near": bool(y.max() > -0.005), "points": len(x)}
