"""Loops for numba."""
