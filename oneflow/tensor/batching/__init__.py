"""Ops on many samples at once, of a program that is written for one of them."""
