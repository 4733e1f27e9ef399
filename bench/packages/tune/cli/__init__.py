"""Define the verb `tune`."""
