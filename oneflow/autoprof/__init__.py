"""`python -m oneflow.autoprof`: times of ops beside PyTorch's, as methods of tests call them."""
