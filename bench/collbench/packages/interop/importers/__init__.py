"""Import the output of other tools: `assembly` lists the readers and makes a run of their readings.

A reader takes a `readings.Source` and the user's `readings.Options` and returns a `readings.ReadFile`. Nothing here
writes or prints. `collbench/packages/replay/importers` reads the recordings of jobs.
"""
