"""The loop of its examples with accumulation, clipping, gathering, saved and loaded state;
bfloat16; models too large to begin with; offloading.
"""

from __future__ import annotations

from tests.clients.inputs import fill, folder, integers, numbers

PACKAGES = "accelerate"


def model_of(torch):
    nn = torch.nn
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def loader_of(torch):
    data = torch.utils.data
    pairs = data.TensorDataset(torch.tensor(numbers(40, 8)), torch.tensor(integers(3, 40)))
    return data.DataLoader(pairs, batch_size=8)


def accelerator(**options):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def task_loop(torch):
    from accelerate.utils import set_seed

    F = torch.nn.functional
    accelerate = accelerator(gradient_accumulation_steps=2)
    set_seed(0)
    model = fill(model_of(torch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, loader, schedule = accelerate.prepare(
        model, optimizer, loader_of(torch), schedule
    )
    losses = []
    for _ in range(3):
        for x, y in loader:
            with accelerate.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerate.backward(loss)
                if accelerate.sync_gradients:
                    accelerate.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    path = folder()
    accelerate.save_state(path)
    weight = accelerate.unwrap_model(model)[0].weight.detach().clone()
    fill(model, seed=9)
    accelerate.load_state(path)
    accelerate.save_model(model, path / "model")
    found = accelerate.unwrap_model(model)[0].weight
    return {
        "losses": losses,
        "gathered": accelerate.gather_for_metrics(model(x)),
        "reduced": accelerate.reduce(loss, "mean"),
        "weight": found,
        "is back": torch.equal(found, weight),
        "rate": schedule.get_last_lr(),
    }


def task_bfloat16(torch):
    accelerate = accelerator(mixed_precision="bf16")
    model, loader = accelerate.prepare(fill(model_of(torch)), loader_of(torch))
    for x, y in loader:
        with accelerate.autocast():
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out.float(), y)
        accelerate.backward(loss)
    gradient = accelerate.unwrap_model(model)[0].weight.grad
    return {"near": round(loss.item(), 1), "norm": round(gradient.norm().item(), 1)}


def task_large_models(torch):
    from accelerate import cpu_offload, init_empty_weights, load_checkpoint_and_dispatch
    from safetensors.torch import save_file

    path = str(folder() / "model.safetensors")
    save_file(fill(model_of(torch)).state_dict(), path)
    with init_empty_weights():
        empty = model_of(torch)
    kind = empty[0].weight.device.type
    loaded = load_checkpoint_and_dispatch(empty, path, device_map={"": "cpu"})
    x = torch.tensor(numbers(2, 8))
    away = cpu_offload(fill(model_of(torch)), execution_device="cpu")
    return {"device": kind, "out": loaded(x), "offloaded": away(x)}
