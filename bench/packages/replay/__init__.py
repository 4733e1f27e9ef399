"""Recorded jobs: where their time in calls went, and their calls made again here."""
