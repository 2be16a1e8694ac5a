"""Forwards and three training steps in nn.Graph: a GPT like nanoGPT's, LSTM, GRU, a Transformer,
a convolution over a graph by index_add; GCNConv is refused.
"""

from __future__ import annotations

from tests.clients.graph_steps import trained
from tests.clients.inputs import integers, numbers
from tests.clients.tasks.nanogpt import WORDS, model_of

PACKAGES = "torch-geometric"
REFUSED = {"task_gcnconv": "sizes that depend on values"}


def task_nanogpt(torch):
    words = torch.tensor(integers(WORDS, 2, 16))
    return trained(torch, model_of(torch), words, pick=lambda out: out[0])


def task_lstm(torch):
    model = torch.nn.LSTM(4, 6, 2, batch_first=True)
    return trained(torch, model, torch.tensor(numbers(2, 5, 4)), pick=lambda out: out[0])


def task_gru(torch):
    model = torch.nn.GRU(4, 6, batch_first=True)
    return trained(torch, model, torch.tensor(numbers(2, 5, 4)), pick=lambda out: out[0])


def task_transformer(torch):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    return trained(torch, torch.nn.TransformerEncoder(layer, 2), torch.tensor(numbers(2, 5, 16)))


def edges(torch):
    return torch.tensor(integers(6, 2, 12))


def task_index_add(torch):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x, pairs):
            return torch.zeros_like(x).index_add(0, pairs[1], self.line(x)[pairs[0]])

    return trained(torch, Layer(), torch.tensor(numbers(6, 4)), edges(torch))


def task_gcnconv(torch):
    from torch_geometric.nn import GCNConv

    return trained(torch, GCNConv(4, 4), torch.tensor(numbers(6, 4)), edges(torch))
