"""Names of PyTorch, each in a module that is called like its place below `torch`."""
