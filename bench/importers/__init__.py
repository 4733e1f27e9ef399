"""Import the output of other tools: `formats` lists the readers, `assembly` makes a run of what they find.

A reader takes a `sources.Source` and the user's `found.Options` and returns a `found.Reading`: numbers, what was left
out and why, and what the file does not tell. Whatever it assumes, it records there. Nothing here writes or prints.
"""
