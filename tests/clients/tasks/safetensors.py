"""files of tensors: written, read whole and by slices; models with shared weights; metadata."""

from tests.clients.inputs import fill, folder, numbers

PACKAGES = "safetensors"


def task_files(torch):
    from safetensors import safe_open
    from safetensors.torch import load, load_file, load_model, save, save_file, save_model

    path = folder() / "x.safetensors"
    x = {"a": torch.tensor(numbers(4, 3)), "b": torch.tensor(numbers(2)).bfloat16()}
    save_file(x, path, metadata={"format": "pt"})
    with safe_open(path, framework="pt") as file:
        part, told = file.get_slice("a")[1:3, :2], file.metadata()
        names = list(file.keys())
    model = fill(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)))
    model[1].weight = model[0].weight
    save_model(model, str(path))
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    other[1].weight = other[0].weight
    missing, unexpected = load_model(other, path)
    return {
        "part": part,
        "told": [f"{k}={v}" for k, v in sorted(told.items())],
        "names": sorted(names),
        "bytes": load(save(x)),
        "model": other(torch.tensor(numbers(2, 3))),
        "left": [*missing, *unexpected, "end"],
        "count": len(load_file(path)),
    }
