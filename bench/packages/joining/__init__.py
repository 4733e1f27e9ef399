"""What joining a process group does to a process, and what stays behind. Loads no torch."""
