"""Checks in processes of their own: one engine, forked checks, ranks, and results of crashes."""
