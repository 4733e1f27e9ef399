"""Define the verbs `gate` and `check`."""
