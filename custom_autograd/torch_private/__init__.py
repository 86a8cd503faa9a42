"""The only room where torch's private names may be spelt: each with the reason why it is needed.

Each file answers one question about torch's inside. `tests/test_torch_private.py` fails loudly, line by line, when
a new torch changes one of the answers.
"""
