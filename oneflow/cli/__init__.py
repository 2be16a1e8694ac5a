"""The `oneflow` command."""
