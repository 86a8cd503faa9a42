"""How an op meets the dispatcher: its kernels, its generated code, and calls that need no dispatcher."""
