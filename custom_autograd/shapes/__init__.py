"""The notation of shapes: one line that says the dimensions of an op's tensors, and what follows from it."""
