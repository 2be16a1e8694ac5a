"""Small things that clients import from upstream's inner modules; oneflow/paths.py leads here."""
