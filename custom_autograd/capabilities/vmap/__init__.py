"""vmap: the registered rule, the reference, or a loop over the batch."""
