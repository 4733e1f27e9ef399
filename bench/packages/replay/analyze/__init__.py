"""Conclusions on recorded jobs, and on steps made again."""
