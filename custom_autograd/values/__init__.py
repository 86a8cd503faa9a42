"""Tensors and results: what kernels and rules may be given, and what they may return."""
