"""What this machine is, what it lacks, and how its processes are set up. Used by parents and by ranks; no torch."""
