"""The source of a call: its parameters, how arguments are passed on, and what a kernel is held to."""
