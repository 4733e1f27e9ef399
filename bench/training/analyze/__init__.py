"""Turn facts of the training benchmark into conclusions."""
