"""Launches of a training step on a GPU: GPT-2 small in float32, mixed precision and bfloat16.

    python benchmarks/launches.py [--layers 12] [--sequence 128] [--batch 1] [--json FILE]

Counts kernels that CuPy launches and products that it hands to cuBLAS, by wrapping the calls of its
driver and library modules; with ONEFLOW_KERNEL_FUSION=0 besides, for comparison. Prints why and
ends with 0 where there is no GPU. Not run on a GPU yet.
"""
