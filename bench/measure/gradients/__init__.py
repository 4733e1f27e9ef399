"""Measuring gradient synchronisation: ranks that train, and what is kept of them."""
