"""Loops for numba, whose threads share them; no kernel here is compiled by it any more."""

import os

# numba's threads (libgomp) wait in a loop by default, and so do those of NumPy's BLAS: in one
# process the two take the cores from each other, and a step takes ten times as long. Read when the
# first loop starts.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
