"""Saving and loading: our container, and a reader of pickled files that runs no code."""
