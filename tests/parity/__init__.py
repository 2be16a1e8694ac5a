"""PyTorch's own tables of operators, modules and optimizers, as a judge of ours.

`python -m tests.parity` from the repository's root runs every entry that exists here.
"""
