"""What users do with a recorded graph: the end of a backward, checkpointing by op."""
