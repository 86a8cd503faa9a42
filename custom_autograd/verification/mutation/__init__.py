"""Changes the rules of an op on purpose, one way at a time, to see whether its tests notice.

point       one function that can be changed: a backward, a jvp, a kernel
operator    one way to change it: sign, factor, drop, ...
mutant      a point with an operator; what it is called, "ns::op/backward/sign", is enough to find it in another process
equivalence watches a mutant on the samples: one that changes nothing there cannot be noticed
outcome     what noticed a mutant, or that it survived
"""
