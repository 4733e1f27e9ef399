"""Pictures of the training benchmark. Every module here imports matplotlib."""
