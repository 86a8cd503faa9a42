"""One correct op per file that looks unusual: its domain, its integers, its randomness, its writes or its types."""
