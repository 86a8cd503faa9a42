"""How an op is differentiated: the plan, the generated Function, and what its forward and backward run."""
