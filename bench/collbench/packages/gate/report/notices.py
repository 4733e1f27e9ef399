"""Write the notices on nodes, and on the lines of a table of expectations."""

from collections.abc import Mapping

from collbench.model.notices import NoticeKind
from collbench.packages.gate.conclusions import GateNotice
from collbench.report.notices import Sentence

_GIVE = "give the rate by --against"
_STAGE = ", in the stage {stage}"
_ELSEWHERE = "{elsewhere:after ; lines for other hardware: }"
SENTENCES: Mapping[NoticeKind, Sentence] = {
    GateNotice.DROPPED: Sentence("{why}"),
    GateNotice.ROUNDS_FAILED: Sentence("its rounds failed"),
    GateNotice.RANK_KILLED: Sentence(f"one of its ranks was killed{_STAGE}"),
    GateNotice.RANK_EXITED: Sentence(f"one of its ranks exited early{_STAGE}"),
    GateNotice.RANK_RAISED: Sentence(f"one of its ranks raised an error{_STAGE}"),
    GateNotice.RANK_HUNG: Sentence(f"one of its ranks hung{_STAGE}"),
    GateNotice.RANK_WRONG: Sentence(f"a result with it was wrong{_STAGE}"),
    GateNotice.RANK_NOT_READY: Sentence(f"one of its ranks did not get ready{_STAGE}"),
    GateNotice.NO_ANSWER: Sentence(f"it does not answer{_STAGE}"),
    GateNotice.RANK_LOST: Sentence("{text}"),
    GateNotice.TOO_FEW_NODES: Sentence("with fewer than {fewest} nodes, the usual rate is unknown", _GIVE),
    GateNotice.NOTHING_USUAL: Sentence("too many nodes differ to know the usual value", _GIVE),
    GateNotice.TOO_FEW_ROUNDS: Sentence("too few rounds were measured"),
    GateNotice.SLOW_INSIDE: Sentence("too slow among its own ranks, in {rounds} rounds"),
    GateNotice.SLOW_BETWEEN: Sentence("too slow with all partners, in {rounds} rounds"),
    GateNotice.UNDECIDED_NODE: Sentence("undecided after {rounds} rounds"),
    GateNotice.BELOW_TABLE: Sentence("too slow for the table"),
    GateNotice.ONE_OF_TWO: Sentence("too slow for the table; with one partner, either node may be the slow one"),
    GateNotice.NOT_SHOWN: Sentence("its pairs do not show whether it reaches the table"),
    GateNotice.USUAL_UNKNOWN: Sentence("reaches the table; the usual rate is unknown here"),
    GateNotice.NONE_INSIDE: Sentence(
        "every node has one rank, so nothing was measured inside: no link between GPUs of one node"
    ),
    GateNotice.SOME_NOT_INSIDE: Sentence(
        "{single} of {nodes} nodes have one rank, so nothing was measured inside: no link between GPUs of one node"
    ),
    GateNotice.UNEQUAL_NODES: Sentence(
        "nodes have {fewest} to {most} ranks: between nodes, the first {fewest} ranks per node were measured"
    ),
    GateNotice.STAGE_FAILED: Sentence("{stage}: {text}"),
    GateNotice.GIVEN_UP: Sentence("{stage}: given up"),
    GateNotice.NOT_JOINED: Sentence("rank {rank} did not join: its host is unknown, and was not measured"),
    GateNotice.LINE_FAILED: Sentence("{why}"),
    GateNotice.NO_BANDWIDTH: Sentence("ranks shared a GPU: no bandwidth is given"),
    GateNotice.NO_TIME: Sentence("no time was measured"),
    GateNotice.ONE_NUMBER: Sentence("one imported number: its variation is unknown", "import several launches"),
    GateNotice.FEW_OF_LINE: Sentence("fewer than {fewest} launches: too few to know the variation of launches"),
    GateNotice.NOT_IN_RUN: Sentence("not in this run"),
    GateNotice.ABOVE_ON_AVERAGE: Sentence("above its limit on average"),
    GateNotice.A_LINE_MISSES: Sentence(f"a line surely misses its limit{_ELSEWHERE}"),
    GateNotice.A_LINE_MISSING: Sentence(f"a line was not measured{_ELSEWHERE}"),
    GateNotice.ALL_REACH: Sentence(f"every line surely reaches its limit{_ELSEWHERE}"),
    GateNotice.NOT_TOGETHER: Sentence(f"lines are open, and cannot be tested together{_ELSEWHERE}"),
    GateNotice.TABLE_REACHES: Sentence(
        f"the table as a whole surely reaches its limits, and each line does on average{_ELSEWHERE}"
    ),
    GateNotice.A_LINE_BELOW: Sentence(f"a line is below its limit on average{_ELSEWHERE}"),
    GateNotice.TABLE_OPEN: Sentence(f"the table as a whole is open{_ELSEWHERE}"),
}
