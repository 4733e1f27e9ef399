"""Follow what a log says before each table of results: commands, variables, settings, headings and all other text.

In: the lines that are not rows. Out: for each table, the facts that must be equal in all launches of a case. What
changes from launch to launch (times, process ids, job numbers, repetitions) is blanked, and so are names of tests in
text: the case has them. Text that follows the last table too, such as the output of `time`, belongs to no table.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, takewhile

from collbench.catalog.variables import allowed
from collbench.packages.interop.importers.logs import LogLine
from collbench.packages.interop.importers.readings import IN_FILE_NAMES

INTERLEAVED = "outputs of two executions are mixed: give each in a file of its own"
# Names of facts; all other names are those of variables and of settings that a tool prints.
COMMAND, TEXT = "command", "text"
# Files and pipes for the output often have the number of the launch, and so has a job.
OUTPUT = re.compile(r"\s(?:-J|--output_file|--job-?id)[\s=]*\S+|\s\d?>>?&?\s*[^\s;|&]*|\s\|\s*tee\b[^;&]*")
_ASSIGNED = re.compile(r"(?:export |declare -x |set )?([A-Z_][A-Z0-9_]*)=.*|(?:setenv|unset) (\w+).*")
# A variable and its value within a text, such as a heading or a message of NCCL.
_MENTIONED = re.compile(r"\b([A-Z]+_[A-Z0-9_]+)(?:\s*[=:]\s*|\s+(?:is|set by environment to)\s+)([\w.,:^=/-]+)")
# Messages of NCCL, of which those on the network are settings.
_BY_LIBRARY = re.compile(r"NCCL (?:INFO (Using network) (.*)|INFO|WARN|TRACE)")
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\dT?|\d\d?:\d\d:\d\d(?:[.,]\d+)?|\b\d+m[\d.]+s\b|\b\d+\.\d+ ?s(?:ec(?:ond)?s?)?\b|\[\d{9,}\.\d+\]"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+(?:\d+\s+)?[A-Z][a-z]{2}[a-z]*\s+\d+"
    r"|\b(?:job(?:[ _-]?id)?|pid|slurm)[\s:=#_-]{0,3}\d+"
    r"|\b(?:run|iter(?:ation)?|trial|rep(?:eat|etition)?|round|attempt|launch|pass|loop|cycle|sample|try)[\s:=#_-]{0,3}\d+"
    r"(?:\s*(?:/|of)\s*\d+)?(?=\W*$|\s*[:)\]<])",
    re.IGNORECASE,
)  # fmt: skip
# Lines that say nothing of a test: messages of Open MPI and UCX, tables of nvidia-smi, the other end of a pipe.
_NOISE = re.compile(r"\[\S+:\d+[\s:\d]*\]|\+[-=+]+\+|tee |.*(?:NVIDIA-SMI|MiB /)")
_TEST = re.compile("|".join([r"\bosu_\w+", *IN_FILE_NAMES]), re.IGNORECASE)
# Words of a command that may be shown: names of options, without their values; and variables of the allow-list.
_SHOWN = re.compile(r"-[a-z]|--[a-z-]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogFact:
    """What a log says, and where; the place does not distinguish facts."""

    text: str
    # Line in the file; 0 if unknown.
    line: int = field(default=0, compare=False)


LogFacts = dict[str, LogFact]


def difference(first: LogFacts, second: LogFacts, same_file: bool) -> tuple[str, str] | None:
    """Return what differs in the facts of two tables, as two texts; None if nothing does.

    Of two files, other text is not compared, and a fact that one of them lacks only if both name their commands, or if
    it is a variable that tunes a library.
    """
    all_names, both = first | second, first.keys() & second.keys()
    for name in all_names:
        known = same_file or COMMAND in both or name in both or allowed([(name, "")])
        if known and first.get(name) != second.get(name) and (same_file or name != TEXT):
            return _shown(name, first.get(name), second.get(name)), _shown(name, second.get(name), first.get(name))
    return None


def _shown(name: str, fact: LogFact | None, other: LogFact | None) -> str:
    """Return a fact for a notice. Logs hold credentials, so of commands and variables only known words are quoted."""
    if fact is None:
        return f"no {name}"
    if name != TEXT and name != COMMAND and not _ASSIGNED.fullmatch(fact.text):
        return fact.text
    more = Counter(fact.text.split()) - Counter(other.text.split() if other else ())
    words = [word for word in more if _SHOWN.fullmatch(word) or allowed([(word.partition("=")[0], "")])]
    place = f"{name} in line {fact.line}" if fact.line else ""
    return ": ".join(filter(None, [place, " ".join(words) if name != TEXT else ""])) or name


class Context:
    """Takes the lines of a log that are not rows, and gives each table its facts."""

    def __init__(self) -> None:
        # What holds until something else is said, and settings that the tool printed for the current execution.
        self.facts: LogFacts = {}
        self.settings: LogFacts = {}
        # Commands since the last table; lines since the last row, with their numbers.
        self.commands: list[str] = []
        self.lines: dict[str, int] = {}
        self.tables: list[tuple[LogFacts, dict[str, int]]] = []

    def take(self, line: LogLine, name: str = "") -> None:
        """Take a line; name: `COMMAND` for a command that starts a test."""
        text = " ".join(line.text.lstrip("#$%+> \t").split())  # without a prompt
        by_library = _BY_LIBRARY.search(text)
        if by_library is not None and by_library[1]:
            self.settings[by_library[1]] = LogFact(by_library[0])
        if not name and (assigned := _ASSIGNED.fullmatch(text)) is not None:
            name = assigned[1] or assigned[2]
        if name == COMMAND:  # of several, each may have set something
            self.commands = list(dict.fromkeys([*self.commands, OUTPUT.sub("", text)]))
            text = "; ".join(self.commands)
        if name:
            self.facts[name] = LogFact(text, line.number)
            return
        target = self.facts if by_library is None else self.settings
        for variable, value in allowed(_MENTIONED.findall(text)).items():
            target[variable] = LogFact(f"{variable}={value}", line.number)
        if re.search(r"\w", text) and by_library is None and not text.startswith("```") and not _NOISE.match(text):
            text = _TEST.sub("…", _VOLATILE.sub("…", text))
            self.lines.pop(text, None)
            self.lines[text] = line.number

    def table(self) -> LogFacts:
        """Return the facts of the table that begins here; `end` completes them."""
        self.tables.append((self.facts | self.settings, self.lines))
        self.commands, self.lines = [], {}
        return self.tables[-1][0]

    def end(self) -> None:
        """Complete the facts: a table has the text of the previous table unless other text stands between them."""
        fact, before = LogFact("no text"), dict[str, None]()
        for facts, lines in self.tables:
            after_both = takewhile(lambda pair: pair[0] == pair[1], zip(lines, self.lines, strict=False))
            new = [*lines][len([*after_both]) :]
            if {*new} != {*islice(reversed(before), len(new))}:
                line = next((line for line in new if line not in before), new[0])
                fact = LogFact(line, lines[line])
            facts[TEXT] = fact
            for line in new:
                before.pop(line, None)
                before[line] = None
