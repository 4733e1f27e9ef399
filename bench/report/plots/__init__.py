"""Pictures of runs. Every module here imports matplotlib."""
