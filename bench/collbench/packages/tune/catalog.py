"""Define, for each library, the choices for a collective, the variables that set them, and the syntax of rule files.

In: choices, a table of rules, text of a file. Out: settings of a case, text of a file, rules and their problems. Reads
no file and starts no process: `tune.machine` asks Open MPI for its algorithms.

Open MPI 5: `coll_tuned`'s rules, format 2 (ompi/mca/coll/tuned/coll_tuned_dynamic_file.c, v5.0). Releases print no
message about a file that they cannot read, and use their own choice. NCCL: the CSV of its example tuner plugin
(plugins/tuner/example/plugin.c, 2.30), which RCCL reads as well; NCCLX's reader has another variable and other columns.
"""

import re
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collbench.model.notices import Kind, Notice
from collbench.model.records import Variables
from collbench.packages.tune.rules import DEFAULT, Cell, Pick, SizeRule

# Size in bytes of the segments that are tried in addition to whole messages, if an algorithm has segments.
SEGMENT = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileRead:
    """The content of a rule file."""

    # Rules in their order.
    rules: tuple[SizeRule, ...]
    # Problems that the library will not honour, with their lines.
    problems: tuple[str, ...]
    # Notices on rules that are not compared, or not as written, with their lines.
    notes: tuple[Notice, ...] = ()


def _first(rules: Sequence[SizeRule], cell: Cell, ranks: Container[int]) -> Pick:
    """Return the choice of the first rule for the cell's operation and size, and for one of these numbers of ranks."""
    return next((rule.choice for rule in rules if rule.ranks in ranks and rule.holds(cell.op, cell.size)), DEFAULT)


# ── Open MPI ─────────────────────────────────────────────────────────────────────────────────────
MCA = "OMPI_MCA_coll_tuned_"
USE_RULES, RULES_FILE = f"{MCA}use_dynamic_rules", f"{MCA}dynamic_rules_filename"
# COLLTYPE of ompi/mca/coll/base/coll_base_functions.h.
COLLECTIVES = {
    "all_gather": ("allgather", 0),
    "all_gather_list": ("allgatherv", 1),
    "all_reduce": ("allreduce", 2),
    "all_to_all": ("alltoall", 3),
    "broadcast": ("bcast", 7),
    "gather": ("gather", 9),
    "reduce": ("reduce", 11),
    "reduce_scatter_list": ("reduce_scatter", 12),
    "reduce_scatter": ("reduce_scatter_block", 13),
    "scatter": ("scatter", 15),
}
SEGMENTED = {
    "bcast": {"chain", "pipeline", "split_binary_tree", "binary_tree", "binomial"},
    "reduce": {"chain", "pipeline", "binary", "binomial", "in-order_binary"},
    "allreduce": {"segmented_ring"},
}
ONLY_SEGMENTED, FOR_TWO = {"segmented_ring"}, {"two_proc"}
# Branches of a tree or chain if the variables set none; a rule file must state this number.
FANOUT = 4
# Versions of rule files that Open MPI reads.
FORMATS = (1, 2)


class _RuleFile:
    """A rule file of Open MPI, whose numbers are taken one after the other; raises ValueError, with the line.

    numbers: see `OpenMpi`. requests: whether a rule may end with the most requests.
    """

    def __init__(self, text: str, numbers: Mapping[str, Mapping[str, int]], requests: bool) -> None:
        lines = enumerate((line.partition("#")[0] for line in text.splitlines()), 1)
        self.left = deque((number, word) for number, line in lines for word in line.split())
        self._numbers, self._requests = numbers, requests
        # The line of the number that was taken last.
        self._line = 1
        # Problems of rules.
        self.problems: list[str] = []

    def take(self, name: str) -> int:
        """Take the next number."""
        if not self.left:
            raise ValueError(f"line {self._line}: the file ends before {name}")
        self._line, word = self.left.popleft()
        if not word.isdecimal():
            raise ValueError(f"line {self._line}: {word!a:.20} was found where {name} should be")
        return int(word)

    def _problem(self, text: str) -> None:
        self.problems.append(f"line {self._line}: {text}")

    def rules(self) -> list[SizeRule]:
        """Take all rules, except for collectives that CollBench does not measure.

        If a file names a collective twice, or a number of ranks of a collective twice, the last rules count.
        """
        rules: dict[str, dict[int, list[SizeRule]]] = {}
        for _ in range(self.take("the number of collectives")):
            number = self.take("a collective")
            ops = ((op, name) for op, (name, value) in COLLECTIVES.items() if value == number)
            op, name = next(ops, ("", f"{number}"))
            if not op:
                self._problem(f"collective {name}: CollBench measures no such collective")
            last, rules[op] = -1, {}
            for _ in range(self.take(f"numbers of ranks of {name}")):
                ranks = self.take("a number of ranks")
                if ranks <= last:
                    self._problem(f"a number of ranks {ranks} after {last}: they must increase")
                last, rules[op][ranks] = ranks, self._sizes(op, name, ranks)
        return [rule for op, tables in rules.items() if op for table in tables.values() for rule in table]

    def _sizes(self, op: str, name: str, ranks: int) -> list[SizeRule]:
        """Take the rules for one number of ranks; the last rule has no largest size."""
        names = {number: algorithm for algorithm, number in self._numbers.get(name, {}).items()}
        rules: list[SizeRule] = []
        for _ in range(self.take("the number of sizes")):
            size, algorithm, _, segment = map(self.take, ("a size", "an algorithm", "a fan-out", "a segment"))
            if rules:
                if size <= rules[-1].low:
                    self._problem(f"size {size} after {rules[-1].low}: they must increase")
                rules[-1] = replace(rules[-1], high=size - 1)
            elif size:
                raise ValueError(f"line {self._line}: the first size of {name} must be 0, not {size}")
            if op and algorithm and algorithm not in names:
                self._problem(f"{name} has no algorithm {algorithm} (0 to {max(names, default=0)})")
            elif names.get(algorithm) in FOR_TWO and ranks != 2:
                self._problem(f"{names[algorithm]} is for 2 ranks, and this rule is for {ranks}")
            choice = Pick(names[algorithm], segment=segment) if algorithm in names else DEFAULT
            rules.append(SizeRule(op, ranks, size, None, choice, self._line))
            if self._requests and self.left and self.left[0][0] == self._line:
                self.take("the most requests")
        return rules


@dataclass(frozen=True)
class OpenMpi:
    """Open MPI, whose variables and rule files name an algorithm for each collective."""

    # The library's name of a collective → name of an algorithm → its number, as `ompi_info` lists them.
    numbers: Mapping[str, Mapping[str, int]]
    name: str = "Open MPI"
    suffix: str = "conf"
    operations: Mapping[str, str] = field(default_factory=lambda: {op: named for op, (named, _) in COLLECTIVES.items()})
    decides: re.Pattern[str] = re.compile(rf"{MCA}(use_dynamic_rules|dynamic_rules\w*|\w+_algorithm\w*)")

    def choices(self, op: str, ranks: int, size: int) -> list[Pick]:
        """Return each algorithm with whole messages, and with segments if it has them and the message is larger."""
        named = self.operations[op]
        picks = []
        for algorithm in self.numbers.get(named, {}):
            if algorithm in FOR_TWO and ranks != 2:
                continue
            if algorithm not in ONLY_SEGMENTED:
                picks.append(Pick(algorithm))
            if algorithm in SEGMENTED.get(named, ()) and size > SEGMENT:
                picks.append(Pick(algorithm, segment=SEGMENT))
        return picks

    def settings(self, picks: Mapping[str, Pick]) -> Variables:
        """Return the variables for these choices. Open MPI's variables accept names of algorithms."""
        pairs = []
        for op, choice in sorted(picks.items()):
            if choice != DEFAULT:
                pairs.append((f"{MCA}{self.operations[op]}_algorithm", choice.algorithm))
                if choice.segment:
                    pairs.append((f"{MCA}{self.operations[op]}_algorithm_segmentsize", str(choice.segment)))
        return Variables((*pairs, (USE_RULES, "1")) if pairs else ())

    def file_settings(self, path: str) -> Variables | None:
        """Return the variables that load a rule file; None for a path with a space, which cannot be a value."""
        return None if re.search(r"\s", path) else Variables(((RULES_FILE, path), (USE_RULES, "1")))

    def write(self, rules: Sequence[SizeRule], hosts: int, comments: Sequence[str] = ()) -> str:
        """Return a file in format 2. Numbers of ranks and sizes without a rule keep the default."""
        operations = sorted({rule.op for rule in rules}, key=lambda op: COLLECTIVES[op][1])
        lines = ["rule-file-version-2", *(f"# {text}" for text in comments), f"{len(operations)} # collectives"]
        for op in operations:
            name, number = COLLECTIVES[op]
            # Number of ranks → smallest size → choice from there on.
            tables: dict[int, dict[int, Pick]] = {0: {0: DEFAULT}}
            for rule in sorted((rule for rule in rules if rule.op == op), key=lambda rule: (rule.ranks, rule.low)):
                steps = tables.setdefault(rule.ranks, {0: DEFAULT})
                steps |= {rule.low: rule.choice} | ({} if rule.high is None else {rule.high + 1: DEFAULT})
                tables.setdefault(rule.ranks + 1, {0: DEFAULT})
            lines += [f"{number} # {name}", f"{len(tables)} # numbers of ranks"]
            for ranks, steps in sorted(tables.items()):
                lines += [f"{ranks} # ranks and more", f"{len(steps)} # sizes"]
                for size, choice in sorted(steps.items()):
                    algorithm = 0 if choice == DEFAULT else self.numbers[name][choice.algorithm]
                    lines.append(f"{size} {algorithm} {FANOUT} {choice.segment} 0 # {choice}")
        return "\n".join(lines) + "\n"

    def read(self, text: str, hosts: int = 1) -> FileRead:
        """Read a rule file of format 1 or 2, whose rules are for any number of hosts.

        The library ignores the whole file at the first syntax error, and so does this method.
        """
        version = re.match(r"rule-file-version-(\d+)", text)
        form = int(version[1]) if version is not None else 1
        if form not in FORMATS:
            return FileRead((), (f"line 1: format {form}: CollBench reads formats {' and '.join(map(str, FORMATS))}",))
        file = _RuleFile(text.removeprefix(version[0]) if version is not None else text, self.numbers, form > 1)
        try:
            rules = file.rules()
        except ValueError as error:
            return FileRead((), (f"{error}: Open MPI then ignores the whole file and prints nothing",))
        more = [f"line {file.left[0][0]}: numbers after the last rule are not read"] if file.left else []
        return FileRead(tuple(rules), (*file.problems, *more))

    def choice_for(self, rules: Sequence[SizeRule], cell: Cell) -> Pick:
        """Return the choice for a cell. Rules for a number of ranks apply up to the next number, even if none fits."""
        named = [rule.ranks for rule in rules if rule.op == cell.op and rule.ranks <= cell.ranks]
        return _first(rules, cell, {max(named, default=-1)})

    def loading_lines(self, path: str) -> list[str]:
        """Return a shell line that loads the file for every program of this library, and remarks."""
        return [
            f"export {USE_RULES}=1 {RULES_FILE}={path}",
            "On several hosts Open MPI 5 uses coll_han on top of coll_tuned, and these rules then hold only for what "
            "coll_han asks of it: set OMPI_MCA_coll_han_priority=0.",
        ]


# ── NCCL ─────────────────────────────────────────────────────────────────────────────────────────
NCCL_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
# Operation → algorithms that are tried with every protocol, and with "simple" only. A choice that a machine lacks
# fails, is reported, and is not chosen.
TRIED = {"all_reduce": (("tree", "ring"), ("nvls",))}
TRIED_ELSEWHERE = (("ring",), ())
# The plugin compares sizes as size_t (`plugin.c` of NVIDIA/nccl, 2026): a rule up to 4294967295 ends below 4 GiB.
LARGEST = 2**64 - 1
FIELDS = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
RULE_FOR_OTHER_HOSTS = Kind(
    "rule-for-other-hosts", "line {line}: a rule for {nodes} hosts, but this run has {hosts}: not compared"
)
RULE_WITH_CHANNELS = Kind(
    "rule-with-channels", "line {line}: {channels} channels: compared with NCCL's own number of channels"
)
RULE_FOR_SOME_CALLS = Kind(
    "rule-for-some-calls", "line {line}: numPipeOps or regBuff: compared as if the rule were for all calls"
)


@dataclass(frozen=True)
class Nccl:
    """NCCL from 2.24 on, whose variables name a choice for each collective."""

    # The user's NCCL_TUNER_PLUGIN.
    plugin: str = ""
    name: str = "NCCL"
    suffix: str = "csv"
    operations: Mapping[str, str] = field(default_factory=lambda: NCCL_COLLECTIVES)
    decides: re.Pattern[str] = re.compile("NCCL_ALGO|NCCL_PROTO|NCCL_TUNER_CONFIG_FILE")

    def choices(self, op: str, ranks: int, size: int) -> list[Pick]:
        """Return all pairs of an algorithm and a protocol that are tried."""
        every, simple = TRIED.get(op, TRIED_ELSEWHERE)
        pairs = [(algorithm, protocol) for algorithm in every for protocol in PROTOCOLS]
        return [Pick(*pair) for pair in [*pairs, *((algorithm, "simple") for algorithm in simple)]]

    def settings(self, picks: Mapping[str, Pick]) -> Variables:
        """Format as `NCCL_ALGO=allreduce:tree;broadcast:ring NCCL_PROTO=allreduce:ll;broadcast:simple`."""
        chosen = {self.operations[op]: choice for op, choice in sorted(picks.items()) if choice != DEFAULT}
        if not chosen:
            return Variables()
        algorithms = ";".join(f"{name}:{choice.algorithm}" for name, choice in chosen.items())
        protocols = ";".join(f"{name}:{choice.protocol}" for name, choice in chosen.items())
        return Variables((("NCCL_ALGO", algorithms), ("NCCL_PROTO", protocols)))

    def file_settings(self, path: str) -> Variables | None:
        """Return the variables that load a rule file; None if the user named no plugin, or for a path with a space."""
        if not self.plugin or re.search(r"\s", path + self.plugin):
            return None
        return Variables((("NCCL_TUNER_CONFIG_FILE", path), ("NCCL_TUNER_PLUGIN", self.plugin)))

    def write(self, rules: Sequence[SizeRule], hosts: int, comments: Sequence[str] = ()) -> str:
        """Return a file with a line for each rule; the first match counts. channels -1: NCCL's choice."""
        lines = [
            f"{self.operations[rule.op]},{rule.low},{LARGEST if rule.high is None else rule.high},"
            f"{rule.choice.algorithm},{rule.choice.protocol},-1,{hosts},{rule.ranks},-1,-1"
            for rule in sorted(rules, key=lambda rule: (rule.op, rule.ranks, rule.low))
        ]
        return "\n".join([*(f"# {text}" for text in [*comments, FIELDS]), *lines]) + "\n"

    def read(self, text: str, hosts: int = 1) -> FileRead:
        """Read the rules. The plugin silently turns a rule with unknown words into another rule."""
        rules: list[SizeRule] = []
        problems: list[str] = []
        notes: list[Notice] = []
        ours = {named: op for op, named in self.operations.items()}
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#") or not line.strip():
                continue
            words = [word.strip() for word in line.split(",") if word]
            where = f"line {number}"
            if not 8 <= len(words) <= 10:
                problems.append(f"{where}: {len(words)} fields instead of 8 to 10: the plugin skips the line")
                continue
            collective, low, high, algorithm, protocol, channels, nodes, ranks = words[:8]
            names = (collective, ours, "allreduce"), (algorithm, ALGORITHMS, "ring"), (protocol, PROTOCOLS, "simple")
            taken = [(word, usual) for word, allowed, usual in names if word not in allowed]
            problems += [f"{where}: {word!a:.30}: the plugin takes it as {usual}" for word, usual in taken]
            if len(line) > 254:
                problems.append(f"{where}: longer than 254 characters: the plugin truncates it")
            if not (low.isdecimal() and high.isdecimal()):
                problems.append(f"{where}: {low!a:.20} to {high!a:.20}: the plugin reads sizes in bytes, digits only")
            elif nodes not in {"-1", str(hosts)}:
                notes.append(RULE_FOR_OTHER_HOSTS(line=number, nodes=nodes, hosts=hosts))
            elif not taken:
                top = None if int(high) >= LARGEST else int(high)
                count = int(ranks) if ranks.isdecimal() else -1
                rules.append(SizeRule(ours[collective], count, int(low), top, Pick(algorithm, protocol), number))
                if channels != "-1" and not self.plugin:
                    notes.append(RULE_WITH_CHANNELS(line=number, channels=channels))
                if any(word != "-1" for word in words[8:]):
                    notes.append(RULE_FOR_SOME_CALLS(line=number))
        return FileRead(tuple(rules), tuple(problems), tuple(notes))

    def choice_for(self, rules: Sequence[SizeRule], cell: Cell) -> Pick:
        """Return the choice of the first rule that matches; ranks -1: any number."""
        return _first(rules, cell, {-1, cell.ranks})

    def loading_lines(self, path: str) -> list[str]:
        """Return a shell line that loads the file, and remarks: the plugin has to be built."""
        return [
            f"export NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE={path}",
            "The plugin is plugins/tuner/example of NCCL's sources; RCCL has a reader built in.",
            "As of NCCL 2.30, its plugin.c sets `*nChannels = 1` before it looks for a rule. Set it to 0 there: "
            "otherwise all calls, with a rule of this file or without, get one channel and not NCCL's default.",
            "NCCL passes over a rule for what it has switched off itself (LL128 on some networks): `collbench tune "
            "CONFIG --check FILE` names such rules if NCCL_TUNER_PLUGIN is set.",
        ]


# Common interface: `operations`: our name → the library's name; `decides`: variables by which a user would choose;
# `choices` of a cell, without the default; `settings`: variables that set the choice of each operation;
# `file_settings`: variables that load a rule file, None if it cannot be loaded; `write` and `read` a rule file;
# `choice_for`: the choice of rules for a cell; `loading_lines`: a shell line that loads a file, and remarks.
Library = OpenMpi | Nccl
