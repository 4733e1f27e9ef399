"""Conclusions on training as text and pictures."""
