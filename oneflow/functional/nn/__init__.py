"""Functions of layers, which `nn.functional` shows."""
