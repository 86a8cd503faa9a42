"""What follows from the line of an op: refusals of wrong sizes, its fake, batching and samples."""
