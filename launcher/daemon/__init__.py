"""One daemon per device: keeps its line to the scheduler and runs one rank of one job at a time."""
