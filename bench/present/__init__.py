"""Summaries to tables, plots and pages for people. The only place that imports matplotlib."""
