"""Functions of layers: what `nn.functional` shows."""
