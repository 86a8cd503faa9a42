"""Generate pages from the code: the gallery, the API, the command line and the errors."""
