"""Neighbours: programs that a site runs beside the cluster, each run for real on this machine.

`make neighbours` (`python -m tests.neighbours`) installs each neighbour from Debian (as root) or
from the package index into an environment of its own, runs its tests, and writes the table of
docs/DEPLOY.md. A neighbour that has passed with the same sources is not run again.

    make neighbours                         all that changed: tests, deploy/ or library
    make neighbours ONLY=prometheus,slurm   these two
    make neighbours AGAIN=1                 all

To add a neighbour, write `test_NAME.py` with `pytestmark = pytest.mark.neighbour`, and a row of
NEIGHBOURS in neighbour.py.
"""
