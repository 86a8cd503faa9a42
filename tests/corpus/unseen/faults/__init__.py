"""One faulty op per file, as an author of kernels would write it; `shown()` returns what is found and what is right."""
