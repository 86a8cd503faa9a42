"""Running checks in a process of their own, so that a crash in a kernel is a finding and not the end of the program."""
