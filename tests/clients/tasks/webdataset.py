"""shards written and read: decoded, mapped, batched, with workers that share the shards."""

from tests.clients.inputs import folder, numbers

PACKAGES = "webdataset"


def _shards(torch):
    import webdataset as wds

    where = folder()
    for shard in range(2):
        with wds.TarWriter(str(where / f"{shard}.tar")) as file:
            for k in range(6):
                x = torch.tensor(numbers(3, seed=6 * shard + k))
                file.write({"__key__": f"{shard}{k}", "x.npy": x.numpy(), "cls": k})
    return [str(where / f"{shard}.tar") for shard in range(2)]


def task_reading(torch):
    import webdataset as wds

    data = wds.WebDataset(_shards(torch), shardshuffle=False).decode().to_tuple("x.npy", "cls")
    batches = list(torch.utils.data.DataLoader(data.batched(4), batch_size=None))
    return {"x": [x for x, _ in batches], "y": [int(one) for _, y in batches for one in y]}


def task_workers(torch):
    import webdataset as wds

    data = wds.WebDataset(_shards(torch), shardshuffle=False).decode().to_tuple("x.npy", "cls")
    loader = wds.WebLoader(data, batch_size=3, num_workers=2)
    rows = torch.cat([torch.as_tensor(x) for x, _ in loader])
    return {"x": rows[rows[:, 0].argsort()], "count": len(rows)}
