"""Matrices: products, norms, factors, solutions, as `flow.linalg` has them."""
