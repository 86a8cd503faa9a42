"""What happens when an op is called or differentiated."""
