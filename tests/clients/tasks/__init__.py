"""Clients of `make clients`, one file each; the package's docstring says how to add one."""
