"""How results are laid out: tables in text, and HTML from templates."""
