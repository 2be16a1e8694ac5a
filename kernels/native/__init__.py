"""Machine code by hand: kernels written as LLVM IR by Python functions, and how it is compiled."""
