"""data sets of Arrow in the format of tensors, maps, shuffles, streams, and loaders over them."""

from tests.clients.inputs import fill, integers, numbers

PACKAGES = "datasets"


def _data(torch):
    from datasets import Dataset

    return Dataset.from_dict(
        {"x": numbers(12, 4).tolist(), "y": integers(3, 12).tolist(), "name": list("abcdefghijkl")}
    )


def task_format(torch):
    data = _data(torch).with_format("torch")
    doubled = data.map(lambda row: {"z": row["x"] * 2})
    loader = torch.utils.data.DataLoader(doubled.select_columns(["x", "y", "z"]), batch_size=5)
    return {
        "row": data[3]["x"],
        "slice": data[2:5]["y"],
        "kind": str(data[0]["x"].dtype).rpartition(".")[2],
        "batches": [batch["z"] for batch in loader],
        "picked": data.filter(lambda row: int(row["y"]) == 1)["x"][:],
        "sorted": data.sort("y")["y"][:],
    }


def task_streams(torch):
    stream = _data(torch).to_iterable_dataset(num_shards=2).with_format("torch")
    loader = torch.utils.data.DataLoader(
        stream.map(lambda row: {"x": row["x"] + 1}, remove_columns=["name", "y"]), batch_size=4
    )
    return {"x": [batch["x"] for batch in loader]}


def task_training(torch):
    data = _data(torch).with_format("torch", columns=["x", "y"])
    model = fill(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for batch in torch.utils.data.DataLoader(data, batch_size=4):
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}
