"""Compute the statistics of tuning."""
