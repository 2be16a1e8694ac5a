"""TensorDict: indexing, stacking, shapes, nested keys, modules, writing to disk."""

from tests.clients.inputs import fill, numbers

PACKAGES = "tensordict"
REFUSED = {
    "task_indexing_and_stacking": "the package functorch",
    "task_modules": "the package functorch",
    "task_disk": "the package functorch",
}


def _dict(torch):
    from tensordict import TensorDict

    x = torch.tensor(numbers(4, 3))
    return TensorDict({"a": x, "b": {"c": x * 2}}, batch_size=[4])


def task_indexing_and_stacking(torch):
    data = _dict(torch)
    both = torch.stack([data, data * 2], 0)
    return {
        "row": data[1]["a"],
        "mask": data[data["a"][:, 0] > 0]["b", "c"],
        "stacked": both["b", "c"],
        "joined": torch.cat([data, data], 0)["a"],
        "shape": list(data.reshape(2, 2).batch_size),
        "sum": (data + 1)["b", "c"],
        "keys": sorted(map(str, data.keys(True, True))),
        "split": [part["a"] for part in data.split(3)],
        "mapped": data.apply(lambda x: x.square())["a"],
    }


def task_modules(torch):
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(fill(torch.nn.Linear(3, 5)), in_keys=["a"], out_keys=["h"])
    second = TensorDictModule(fill(torch.nn.Linear(5, 2)), in_keys=["h"], out_keys=["out"])
    return {"out": TensorDictSequential(first, second)(_dict(torch))["out"]}


def task_disk(torch):
    from tensordict import TensorDict

    from tests.clients.inputs import folder

    path = folder() / "data"
    _dict(torch).memmap(path)
    return {"a": TensorDict.load_memmap(path)["a"]}
