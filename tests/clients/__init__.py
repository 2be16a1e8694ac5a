"""Packages from the index that were written for upstream or for PyTorch, run as they are."""
