"""Conclusions of the training benchmark as text, tables, pictures and traces."""
