"""The code of an op that runs in a call: written for it once, recorded as nodes, and attached to the dispatcher."""
