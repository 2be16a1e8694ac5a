"""Numbers that scripts ask the library for by name, as of Python's `math`."""

from math import e, inf, nan, pi

__all__ = ["e", "inf", "nan", "pi"]
