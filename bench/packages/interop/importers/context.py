"""Follow what a log says before each table of results: commands, variables, settings, headings and all other text.

In: the lines that are not rows. Out: for each table, the facts that must be equal in all launches of a case. What
changes from launch to launch (times, process ids, job numbers, repetitions) is blanked, and so are names of tests in
text: the case has them. Text that follows the last table too, such as the output of `time`, belongs to no table.
"""

import re
from itertools import islice, takewhile

from bench.packages.interop.importers.logs import LogLine
from bench.packages.interop.importers.readings import IN_FILE_NAMES

# Names of facts; all other names are those of variables and of settings that a tool prints.
COMMAND, TEXT = "command", "text"
# Files and pipes for the output often have the number of the launch.
OUTPUT = re.compile(r"\s(?:-J|--output_file)[\s=]*\S+|\s\d?>.*|\s\|\s*tee\b.*")
_ASSIGNED = re.compile(r"(?:export |declare -x |set )?([A-Z_][A-Z0-9_]*)=.*|(?:setenv|unset) (\w+).*")
# Messages of NCCL, of which those on variables state settings.
_BY_LIBRARY = re.compile(r"NCCL (?:INFO (\w+) set by environment to .*|INFO|WARN|TRACE)")
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\dT?|\d\d?:\d\d:\d\d(?:[.,]\d+)?|\b\d+m[\d.]+s\b|\b\d+\.\d+ ?s(?:ec(?:ond)?s?)?\b|\[\d{9,}\.\d+\]"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+(?:\d+\s+)?[A-Z][a-z]{2}[a-z]*\s+\d+"
    r"|(?:job(?:[ _-]?id)?|pid|slurm)[\s:=#_-]{0,3}\d+"
    r"|\b(?:run|iter(?:ation)?|trial|rep(?:eat|etition)?|round|attempt|launch|pass|loop|cycle|sample|try)[\s:=#_-]{0,3}\d+"
    r"(?:\s*(?:/|of)\s*\d+)?(?=\W*$|\s*[:)\]<])",
    re.IGNORECASE,
)  # fmt: skip
_TEST = re.compile("|".join([r"\bosu_\w+", *IN_FILE_NAMES]), re.IGNORECASE)


def stable(text: str) -> str:
    """Return a line without what changes from launch to launch."""
    return _VOLATILE.sub("…", " ".join(text.split()))


def difference(first: dict[str, str], second: dict[str, str], same_file: bool) -> tuple[str, str] | None:
    """Return what differs in the facts of two tables, as two texts; None if nothing does.

    Of two files, the text is not compared, and a fact that one of them lacks only if both name their commands.
    """
    both = first.keys() & second.keys()
    for name in first | second if COMMAND in both or same_file else both:
        if first.get(name) != second.get(name) and (same_file or name != TEXT):
            return first.get(name, f"no {name}"), second.get(name, f"no {name}")
    return None


class Context:
    """Takes the lines of a log that are not rows, and gives each table its facts."""

    def __init__(self) -> None:
        # What holds until something else is said, and settings that the tool printed for the current execution.
        self.facts: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        # Commands since the last table; lines since the last row, with their numbers.
        self.commands: list[str] = []
        self.lines: dict[str, int] = {}
        self.tables: list[tuple[dict[str, str], dict[str, int]]] = []

    def take(self, line: LogLine, name: str = "") -> None:
        """Take a line; name: `COMMAND` for a command that starts a test."""
        text = stable(line.text.lstrip("#$%+> \t"))  # without a prompt
        by_library = _BY_LIBRARY.search(text)
        if by_library is not None and by_library[1]:
            self.settings[by_library[1]] = by_library[0]
        if not name and (assigned := _ASSIGNED.fullmatch(text)) is not None:
            name = assigned[1] or assigned[2]
        if name == COMMAND:  # of several, each may have set something
            self.commands = list(dict.fromkeys([*self.commands, OUTPUT.sub("", text)]))
            text = "; ".join(self.commands)
        if name:
            self.facts[name] = text
        elif re.search(r"\w", text) and by_library is None and not text.startswith("```"):
            text = _TEST.sub("…", text)
            self.lines.pop(text, None)
            self.lines[text] = line.number

    def table(self) -> dict[str, str]:
        """Return the facts of the table that begins here; `end` completes them."""
        self.tables.append((self.facts | self.settings, self.lines))
        self.commands, self.lines = [], {}
        return self.tables[-1][0]

    def end(self) -> None:
        """Complete the facts: a table has the text of the previous table unless other text stands between them."""
        text, before = "no text", dict[str, None]()
        for facts, lines in self.tables:
            after_both = takewhile(lambda pair: pair[0] == pair[1], zip(lines, self.lines, strict=False))
            new = [*lines][len([*after_both]) :]
            if {*new} != {*islice(reversed(before), len(new))}:
                line = next((line for line in new if line not in before), new[0])
                text = f"line {lines[line]}: {line}"
            facts[TEXT] = text
            for line in new:
                before.pop(line, None)
                before[line] = None
