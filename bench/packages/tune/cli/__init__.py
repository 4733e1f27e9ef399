"""The verb `tune`."""
