"""Facts about this machine, and the set-up of its processes. Used by parents and by ranks; no torch."""
