"""The verbs of training."""
