"""Automatic differentiation: a tape over ops, and the backward pass over it."""
