"""Read facts about this machine, and set up its processes. Used by parent processes and by ranks; no torch."""
