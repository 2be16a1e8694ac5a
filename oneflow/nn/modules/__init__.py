"""The layers, one file per kind."""
