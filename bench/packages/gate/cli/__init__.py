"""The verbs `gate` and `check`."""
