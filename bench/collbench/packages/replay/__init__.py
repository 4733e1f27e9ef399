"""Account for the time in the calls of recorded jobs, and replay these calls on this machine."""
