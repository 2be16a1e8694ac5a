"""Saving and loading: our container, folders that all ranks write, and a reader of pickled files
that runs no code.
"""
