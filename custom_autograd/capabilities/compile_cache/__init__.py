"""Compile caches: a changed rule is never served from a cache that was filled before the change."""
