"""Provide the sentences of notices on imported numbers, which their kinds state."""

from collbench.packages.interop.conclusions import ImportNotice
from collbench.report.notices import Sentence

SENTENCES = {kind: Sentence(kind.text, kind.remedy) for kind in ImportNotice}
