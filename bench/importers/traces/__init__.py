"""Readers of what a job's own profilers record: one module a format; `reading` tells them apart."""
