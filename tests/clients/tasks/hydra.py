"""modules and optimizers instantiated from configurations; overrides; partial functions."""

from tests.clients.inputs import fill, numbers

PACKAGES = "hydra-core"


def task_instantiation(torch):
    from hydra.utils import get_class, instantiate
    from omegaconf import OmegaConf

    config = OmegaConf.create(
        {
            "model": {
                "_target_": "torch.nn.Sequential",
                "_args_": [
                    {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 8},
                    {"_target_": "torch.nn.GELU", "approximate": "tanh"},
                    {"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 2},
                ],
            },
            "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.1, "_partial_": True},
        }
    )
    model = fill(instantiate(config.model))
    optimizer = instantiate(config.optimizer)(model.parameters())
    losses = []
    for _ in range(3):
        loss = model(torch.tensor(numbers(5, 4))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "class": get_class("torch.nn.ReLU").__name__}
