"""FLOPs: what torch's counter counts for the calls of an op, and for its backward."""
