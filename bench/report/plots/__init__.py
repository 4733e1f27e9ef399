"""Draw pictures of runs. Every module here imports matplotlib."""
