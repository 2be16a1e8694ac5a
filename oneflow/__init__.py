"""OneFlow: a distributed deep-learning runtime built of actor services."""

__version__ = "0.1.0"
