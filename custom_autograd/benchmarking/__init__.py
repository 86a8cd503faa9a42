"""Times of calls that can be compared: taken in turns in one run, with a description of the machine."""
