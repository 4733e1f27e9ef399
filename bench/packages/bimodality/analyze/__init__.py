"""Conclusions on modes: of calls, and of launches. Loads no torch."""
