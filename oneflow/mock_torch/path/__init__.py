"""A folder of Python's search path: see `eval $(oneflow-mock-torch)`."""
