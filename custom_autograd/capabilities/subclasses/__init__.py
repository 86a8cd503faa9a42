"""Tensor subclasses and modes: rules for a class, nested tensors, and what to do about a class that refuses."""
