"""The notation of shapes: one line that declares the dimensions of an op's tensors, and what follows from it."""
