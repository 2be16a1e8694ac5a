"""Seventeen layers, adjacency in torch.sparse (CSR, COO), training on batches, utilities."""

import numpy as np

from tests.clients.inputs import fill, integers, numbers, shares

PACKAGES = "torch-geometric"
TOLERANCE = 1e-3


def task_layers(torch):
    import torch_geometric.nn as made

    linear = torch.nn.Linear
    x, edges = torch.tensor(numbers(12, 8)), torch.tensor(integers(12, 2, 40))
    layers = {
        "gcn": made.GCNConv(8, 4),
        "gat": made.GATConv(8, 4, heads=2),
        "gat v2": made.GATv2Conv(8, 4, heads=2),
        "sage": made.SAGEConv(8, 4),
        "sage max": made.SAGEConv(8, 4, aggr="max"),
        "gin": made.GINConv(torch.nn.Sequential(linear(8, 4))),
        "transformer": made.TransformerConv(8, 4, heads=2),
        "edge": made.EdgeConv(linear(16, 4)),
        "graph": made.GraphConv(8, 4),
        "chebyshev": made.ChebConv(8, 4, K=2),
        "simple": made.SGConv(8, 4),
        "appnp": made.APPNP(3, 0.1),
        "tag": made.TAGConv(8, 4),
        "le": made.LEConv(8, 4),
        "arma": made.ARMAConv(8, 4),
        "gen": made.GENConv(8, 4),
        "gated": made.GatedGraphConv(8, 2),
    }
    found = {"weighted": fill(made.GCNConv(8, 4))(x, edges, torch.tensor(shares(40)))}
    for name, layer in layers.items():
        y = fill(layer)(x, edges)
        found[name] = y
        if y.requires_grad:
            y.square().sum().backward()
            # Of the last one: those of biases of keys are zero but for rounding.
            found[f"{name} gradient"] = [p.grad for p in layer.parameters() if p.grad is not None][
                -1
            ]
    return found


def task_sparse_adjacency(torch):
    import torch_geometric.nn as made
    import torch_geometric.transforms as transforms
    from torch_geometric.data import Data
    from torch_geometric.utils import (
        spmm,
        to_edge_index,
        to_torch_coo_tensor,
        to_torch_csc_tensor,
        to_torch_csr_tensor,
    )

    x = torch.tensor(numbers(12, 8))
    edges = torch.tensor(np.unique(integers(12, 2, 40), axis=1))
    weights = torch.tensor(shares(edges.shape[1]))
    csr = to_torch_csr_tensor(edges, weights, size=12)
    matrices = {
        "coo": to_torch_coo_tensor(edges, weights, size=12),
        "csr": csr,
        "csc": to_torch_csc_tensor(edges, weights, size=12),
    }
    found = {how: spmm(csr, x, how) for how in ("mean", "max", "min")}
    for name, matrix in matrices.items():
        found[name], found[f"{name} product"] = matrix.to_dense(), spmm(matrix, x)
        found[f"{name} edges"], found[f"{name} values"] = to_edge_index(matrix)
    layers = {
        "gcn": made.GCNConv(8, 4),
        "gat": made.GATConv(8, 4, heads=2),
        "sage": made.SAGEConv(8, 4),
        "gin": made.GINConv(torch.nn.Sequential(torch.nn.Linear(8, 4))),
        "graph": made.GraphConv(8, 4),
    }
    for name, layer in layers.items():
        found[f"{name} of csr"] = fill(layer)(x, csr)
        found[f"{name} of coo"] = layer(x, matrices["coo"].t().coalesce())
        if name not in ("gcn", "gat"):  # which refuse compressed columns themselves
            found[f"{name} turned"] = layer(x, csr.t())
    layer, losses = layers["gcn"], []
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    for _ in range(5):
        loss = layer(x, csr).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    data = Data(x=x, edge_index=edges, edge_weight=weights)
    turned = transforms.ToSparseTensor(layout=torch.sparse_csr)(data).adj_t
    return found | {"losses": losses, "transform": turned.to_dense()}


def task_training(torch):
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import BatchNorm, GATConv, GCNConv, global_max_pool, global_mean_pool

    graphs = [
        Data(
            x=torch.tensor(numbers(5, 8, seed=i)),
            edge_index=torch.tensor(integers(5, 2, 9, seed=i)),
            y=torch.tensor([i % 2]),
        )
        for i in range(6)
    ]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(8, 4), GATConv(4, 4)
            self.norm, self.head = BatchNorm(4), torch.nn.Linear(4, 2)

        def forward(self, batch):
            h = self.first(batch.x, batch.edge_index).relu()
            h = self.norm(self.second(h, batch.edge_index))
            pooled = global_mean_pool(h, batch.batch) + global_max_pool(h, batch.batch)
            return self.head(pooled)

    net, losses = fill(Net()), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        for batch in DataLoader(graphs, batch_size=3):
            loss = torch.nn.functional.cross_entropy(net(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses}


def task_utilities(torch):
    import torch_geometric.transforms as transforms
    from torch_geometric import utils
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.nn import HeteroConv, SAGEConv

    edges = torch.tensor(integers(6, 2, 10))
    steps = [transforms.NormalizeFeatures(), transforms.AddSelfLoops(), transforms.ToUndirected()]
    data = transforms.Compose(steps)(Data(x=torch.tensor(shares(6, 4)), edge_index=edges))
    mixed = HeteroData()
    mixed["u"].x, mixed["i"].x = torch.tensor(numbers(4, 8)), torch.tensor(numbers(5, 8))
    mixed["u", "r", "i"].edge_index = torch.tensor(integers(4, 2, 8))
    layer = fill(HeteroConv({("u", "r", "i"): SAGEConv((8, 8), 4)}))
    return {
        "adjacency": utils.to_dense_adj(edges),
        "degree": utils.degree(edges[0], 6),
        "softmax": utils.softmax(torch.tensor(numbers(10)), edges[0]),
        "scatter": utils.scatter(torch.tensor(numbers(10, 3)), edges[0], dim=0, reduce="max"),
        "undirected": utils.to_undirected(edges),
        "hops": utils.k_hop_subgraph(0, 1, edges, num_nodes=6)[0],
        "laplacian": utils.get_laplacian(edges, normalization="sym")[1],
        "part": utils.subgraph([0, 1, 2, 3], edges)[0],
        "data": [data.x, data.edge_index],
        "hetero": layer(mixed.x_dict, mixed.edge_index_dict)["i"],
    }
