"""Define the sentences of notices on imported numbers."""

from collections.abc import Mapping

from collbench.model.notices import NoticeKind
from collbench.packages.interop.conclusions import ImportNotice
from collbench.report.notices import Sentence

_OUT = "left out: {rows:count row}: "
_UNEVEN = f"{_OUT}alltoallv_perf"
_TIMED = "times of single calls, by events {} them: the mean is the slowest process's"
SENTENCES: Mapping[NoticeKind, Sentence] = {
    ImportNotice.REPEATED: Sentence(
        "{count:count case} more than once in one file (such as {operation} of {size_bytes:bytes}): each time "
        "counts as a launch, even if the same process measured it, which varies less than new processes do"
    ),
    ImportNotice.DROPPED_VARIABLES: Sentence("dropped from the file's environment dump: {count:count variable}"),
    ImportNotice.COPIES: Sentence(
        "{copies} copies ran at the same time, each with {ranks:count rank} of its own (a test built without MPI): "
        "their rows count as launches, and none of them measures communication between the copies"
    ),
    ImportNotice.BUSIEST_RANK: Sentence(
        "alltoallv_perf: the bus bandwidth here counts the bytes that the busiest rank sends to others; the tool "
        "counts (n-1)/n of all its bytes, however many stay on it"
    ),
    ImportNotice.OUT_OF_BOUNDS: Sentence("the tool itself reports out of bounds values: {found} FAILED"),
    ImportNotice.DEBUG_OUTPUT: Sentence("NCCL_DEBUG=INFO wrote while it measured"),
    ImportNotice.PARALLEL_INIT: Sentence("parallel init: one thread for each GPU of a process"),
    ImportNotice.RECORDED_ERROR: Sentence("the file records an error: {error}"),
    ImportNotice.FIRST_CALLS: Sentence("without the first {calls:count call} per case, as -K asked"),
    ImportNotice.TIMED_AROUND: Sentence(_TIMED.format("around")),
    ImportNotice.TIMED_BETWEEN: Sentence(_TIMED.format("between")),
    ImportNotice.SINGLE_CALLS: Sentence(
        "the file also has statistics of single calls, by events between them: the mean of all was taken, which every "
        "version prints"
    ),
    ImportNotice.STRANGE_RATES: Sentence(
        "{wrong} of {checked} bus bandwidths of the file do not follow from size, time and {ranks} ranks (at "
        "{size_bytes} B: {printed:g} GB/s in the file, {computed:.3g} computed)"
    ),
    ImportNotice.SCALED: Sentence(
        "{operation}: sizes were multiplied by {ranks}: OSU counts one rank's share, here all are counted"
    ),
    ImportNotice.OPERATION_BY_NAME: Sentence(
        "unknown: the collective is not in the file: it was taken from the file's name"
    ),
    ImportNotice.RANKS_BY_RATES: Sentence(
        "unknown: the list of ranks is not in the file: their number was computed from busbw/algbw"
    ),
    ImportNotice.RANKS_NEXT_TO_OUTPUT: Sentence(
        "unknown: the number of ranks is not in the output: it was taken from the text next to it"
    ),
    ImportNotice.SPREAD_ASSUMED: Sentence(
        "unknown: {variable}, how alltoallv_perf divided: the tool's default, {spread:g}, is assumed"
    ),
    ImportNotice.AVERAGE_ASSUMED: Sentence(
        "unknown: how ranks were combined (-a): the tool's default, their average, is assumed"
    ),
    ImportNotice.CALLS_UNKNOWN: Sentence("unknown: the number of calls behind a time"),
    ImportNotice.DATATYPE_ASSUMED: Sentence(
        "unknown: the datatype is not in the output: {reduced} for reductions and {moved} for the rest is assumed"
    ),
    ImportNotice.WINDOW_ASSUMED: Sentence(
        "unknown: how many messages a window had (-W): the default of {messages} is assumed"
    ),
    ImportNotice.LIBRARY_UNKNOWN: Sentence(
        "unknown: the library: OMB-Py calls it MPI, also where torch's gloo or another took its place"
    ),
    ImportNotice.UNREADABLE: Sentence(f"{_OUT}cut off or unreadable"),
    ImportNotice.NO_COUNTERPART: Sentence(f"{_OUT}{{test}} has no counterpart here"),
    ImportNotice.CPU_TIME: Sentence(f"{_OUT}CPU time of issuing the calls (-C 1), not the time of the operation"),
    ImportNotice.UNNAMED_DIVISION: Sentence(f"{_OUT}NCCL_TESTS_SPLIT divided the ranks in an unsupported way"),
    ImportNotice.CONTRADICTION: Sentence(f"{_OUT}numbers of the row contradict each other, or the test"),
    ImportNotice.OTHER_SETTINGS: Sentence(
        f"{_OUT}measured under other settings ({{first}}; {{second}}): import each setting from a file of its own"
    ),
    ImportNotice.OTHER_DIVISION: Sentence(f"{_UNEVEN} of rccl-tests, which divides data in its own way"),
    ImportNotice.MATRIX: Sentence(f"{_UNEVEN} with a matrix of bytes, which is not in the file"),
    ImportNotice.NOT_BY_SPREAD: Sentence(
        f"{_UNEVEN}: sizes do not follow from a spread of {{spread:g}}, so its division is unknown"
    ),
    ImportNotice.SIZE_0: Sentence(f"{_OUT}size 0"),
    ImportNotice.NEGATIVE_SIZE: Sentence(f"{_OUT}a negative size: integer overflow"),
    ImportNotice.NO_SIZE: Sentence(f"{_OUT}no size"),
    ImportNotice.OTHER_DTYPE: Sentence(f"{_OUT}dtype {{dtype:.40}}, which CollBench does not have"),
    ImportNotice.OTHER_REDUCE_OP: Sentence(f"{_OUT}reduce op {{reduce_op:.40}}, which CollBench does not have"),
    ImportNotice.STRANGE_ROOT: Sentence(f"{_OUT}a root that is not one of the ranks"),
    ImportNotice.NO_TIME_IN_HALF: Sentence(f"{_OUT}no time in one half of the row"),
    ImportNotice.NO_TIME: Sentence(f"{_OUT}no time, or one that was cut"),
    ImportNotice.NO_TITLE: Sentence(f"{_OUT}in a table without a title"),
    ImportNotice.OTHER_COLUMNS: Sentence(f"{_OUT}columns that do not fit the title"),
}
