"""Serving of models over HTTP: `oneflow serve PATH`."""
