"""Flows of eight kinds, a mixture and distributions: densities, training, inverses."""

from tests.clients.inputs import fill, numbers

PACKAGES = "zuko"
TOLERANCE = 1e-3

FLOWS = {
    "MAF": {"transforms": 2, "hidden_features": (8, 8)},
    "NSF": {"transforms": 2, "hidden_features": (8, 8), "bins": 4},
    "NICE": {"transforms": 2, "hidden_features": (8,)},
    "NAF": {"transforms": 1, "hidden_features": (8,), "network": {"hidden_features": (8,)}},
    "SOSPF": {"transforms": 1, "hidden_features": (8,)},
    "BPF": {"transforms": 1, "hidden_features": (8,)},
    "NCSF": {"transforms": 1, "hidden_features": (8,)},
}


def task_flows(torch):
    import zuko

    x, context = torch.tensor(numbers(16, 3)), torch.tensor(numbers(16, 2, seed=1))
    found = {}
    for name, options in FLOWS.items():
        flow = fill(getattr(zuko.flows, name)(3, 2, **options))
        optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
        losses = []
        for _ in range(8):
            loss = -flow(context).log_prob(x).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        made = flow(context)
        found[name] = losses
        found[f"{name} there"], found[f"{name} size"] = made.transform.call_and_ladj(x)
        found[f"{name} draws"] = list(made.sample((2,)).shape)
    return found


def task_other_densities(torch):
    import zuko

    # In float64: the solver of the continuous flow chooses its steps by errors.
    x = torch.tensor(numbers(16, 3)).double()
    context = torch.tensor(numbers(16, 2, seed=1)).double()
    kinds = {
        "continuous": zuko.flows.CNF(3, 2, hidden_features=(8,)),
        "mixture": zuko.mixtures.GMM(3, 2, components=3),
    }
    found = {}
    for name, model in kinds.items():
        loss = -fill(model).double()(context).log_prob(x).mean()
        loss.backward()
        found[name] = loss
        found[f"{name} gradients"] = [p.grad for p in model.parameters() if p.grad is not None]
    made = zuko.distributions
    one = torch.ones(3).double()
    normal = torch.distributions.Normal(0 * one, 3 * one)
    kinds = {
        "box": made.BoxUniform(-4 * one, 4 * one),
        "diagonal": made.DiagNormal(0 * one, 2 * one).expand((16,)),
        "truncated": made.Truncated(normal, -3 * one, 3 * one),
        "minimum": made.Minimum(normal, 3),
        "mixed": made.Mixture(made.DiagNormal(x[:3], torch.ones(3, 3).double()), 0 * one),
    }
    return found | {name: kind.log_prob(x) for name, kind in kinds.items()}
