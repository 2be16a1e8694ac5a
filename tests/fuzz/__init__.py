"""Random programs that PyTorch and this library must answer alike."""
