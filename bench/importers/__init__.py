"""Output of other tools → our samples: `formats` names the readers, `assembly` makes a run of what they find.

A reader takes a `sources.Source` and the user's `found.Options` and gives a `found.Reading`: numbers, what was left out
and why, what the file does not tell. It guesses nothing that it does not say. Nothing here writes or prints.
"""
