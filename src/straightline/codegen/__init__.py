"""From kernels of the loop IR to machine code."""
