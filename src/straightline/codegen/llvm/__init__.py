"""The LLVM emitter: LLVM IR as text with explicit vectors, and machine code in this process."""
