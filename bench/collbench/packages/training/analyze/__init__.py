"""Conclusions from runs of training steps, and advice from them. Loads no torch."""
