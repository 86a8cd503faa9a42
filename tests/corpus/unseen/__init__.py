"""Ops that were written before the checker had seen any of them: 40 with one mistake each, and 30 without."""
