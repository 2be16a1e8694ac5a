"""Tools of processes that serve: pages over HTTP, relays, lines with proofs, pulses, places to fail
on purpose, files of traces and metrics.
"""
