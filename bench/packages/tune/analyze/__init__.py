"""The statistics of tuning."""
