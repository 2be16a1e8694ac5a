"""Names of upstream's inner modules."""
