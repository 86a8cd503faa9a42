"""Ops that were written before the checker had seen any of them: 50 with one mistake each, and 33 without."""
