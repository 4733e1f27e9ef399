"""Define the kinds of notices that an import gives on the numbers in a file."""

from collbench.model.notices import NoticeKind

# Beginnings of sentences.
_OUT = "left out: {rows:count row}: "
_UNEVEN = f"{_OUT}alltoallv_perf"
_TIMED = "times of single calls, by events {} them: the mean is the slowest process's"


class ImportNotice(NoticeKind):
    """Notices about imported numbers."""

    # Reasons to doubt the numbers.
    REPEATED = (
        "repeated-cases",
        "{count:count case} more than once in one file (such as {operation} of {size_bytes:bytes}): each time counts "
        "as a launch, even if the same process measured it, which varies less than new processes do",
    )
    DROPPED_VARIABLES = "dropped-variables", "dropped from the file's environment dump: {count:count variable}"
    COPIES = (
        "copies",
        "{copies} copies ran at the same time, each with {ranks:count rank} of its own (a test built without MPI): "
        "their rows count as launches, and none of them measures communication between the copies",
    )
    BUSIEST_RANK = (
        "busiest-rank",
        "alltoallv_perf: the bus bandwidth here counts the bytes that the busiest rank sends to others; the tool "
        "counts (n-1)/n of all its bytes, however many stay on it",
    )
    OUT_OF_BOUNDS = "out-of-bounds", "the tool itself reports out of bounds values: {found} FAILED"
    DEBUG_OUTPUT = "imported-debug-output", "NCCL_DEBUG=INFO wrote while it measured"
    PARALLEL_INIT = "parallel-init", "parallel init: one thread for each GPU of a process"
    RECORDED_ERROR = "recorded-error", "the file records an error: {error}"
    FIRST_CALLS = "without-first-calls", "without the first {calls:count call} per case, as -K asked"
    TIMED_AROUND = "timed-around-calls", _TIMED.format("around")
    TIMED_BETWEEN = "timed-between-calls", _TIMED.format("between")
    SINGLE_CALLS = (
        "statistics-of-single-calls",
        "the file also has statistics of single calls, by events between them: the mean of all was taken, which every "
        "version prints",
    )
    STRANGE_RATES = (
        "strange-rates",
        "{wrong} of {checked} bus bandwidths of the file do not follow from size, time and {ranks} ranks (at "
        "{size_bytes} B: {printed:g} GB/s in the file, {computed:.3g} computed)",
    )
    SCALED = (
        "scaled-sizes",
        "{operation}: sizes were multiplied by {ranks}: OSU counts one rank's share, here all are counted",
    )
    # Facts that a file lacks.
    OPERATION_BY_NAME = (
        "operation-by-name",
        "unknown: the collective is not in the file: it was taken from the file's name",
    )
    RANKS_BY_RATES = (
        "ranks-by-rates",
        "unknown: the list of ranks is not in the file: their number was computed from busbw/algbw",
    )
    RANKS_NEXT_TO_OUTPUT = (
        "ranks-next-to-output",
        "unknown: the number of ranks is not in the output: it was taken from the text next to it",
    )
    SPREAD_ASSUMED = (
        "spread-assumed",
        "unknown: {variable}, how alltoallv_perf divided: the tool's default, {spread:g}, is assumed",
    )
    AVERAGE_ASSUMED = (
        "average-assumed",
        "unknown: how ranks were combined (-a): the tool's default, their average, is assumed",
    )
    CALLS_UNKNOWN = "calls-unknown", "unknown: the number of calls behind a time"
    DATATYPE_ASSUMED = (
        "datatype-assumed",
        "unknown: the datatype is not in the output: {reduced} for reductions and {moved} for the rest is assumed",
    )
    WINDOW_ASSUMED = (
        "window-assumed",
        "unknown: how many messages a window had (-W): the default of {messages} is assumed",
    )
    LIBRARY_UNKNOWN = (
        "library-unknown",
        "unknown: the library: OMB-Py calls it MPI, also where torch's gloo or another took its place",
    )
    # Reasons why rows were left out; the number of rows is a value of the notice.
    UNREADABLE = "unreadable-rows", f"{_OUT}cut off or unreadable"
    NO_COUNTERPART = "no-counterpart", f"{_OUT}{{test}} has no counterpart here"
    CPU_TIME = "cpu-time", f"{_OUT}CPU time of issuing the calls (-C 1), not the time of the operation"
    UNNAMED_DIVISION = "unnamed-division", f"{_OUT}NCCL_TESTS_SPLIT divided the ranks in an unsupported way"
    CONTRADICTION = "contradiction", f"{_OUT}numbers of the row contradict each other, or the test"
    OTHER_SETTINGS = (
        "other-settings",
        f"{_OUT}measured under other settings ({{first}}; {{second}}): import each setting from a file of its own",
    )
    OTHER_DIVISION = "other-division", f"{_UNEVEN} of rccl-tests, which divides data in its own way"
    MATRIX = "matrix-of-bytes", f"{_UNEVEN} with a matrix of bytes, which is not in the file"
    NOT_BY_SPREAD = (
        "not-by-spread",
        f"{_UNEVEN}: sizes do not follow from a spread of {{spread:g}}, so its division is unknown",
    )
    SIZE_0 = "size-0", f"{_OUT}size 0"
    NEGATIVE_SIZE = "negative-size", f"{_OUT}a negative size: integer overflow"
    NO_SIZE = "no-size", f"{_OUT}no size"
    OTHER_DTYPE = "other-dtype", f"{_OUT}dtype {{dtype:.40}}, which CollBench does not have"
    OTHER_REDUCE_OP = "other-reduce-op", f"{_OUT}reduce op {{reduce_op:.40}}, which CollBench does not have"
    STRANGE_ROOT = "strange-root", f"{_OUT}a root that is not one of the ranks"
    NO_TIME_IN_HALF = "no-time-in-half", f"{_OUT}no time in one half of the row"
    NO_TIME = "no-time-in-row", f"{_OUT}no time, or one that was cut"
    NO_TITLE = "no-title", f"{_OUT}in a table without a title"
    OTHER_COLUMNS = "other-columns", f"{_OUT}columns that do not fit the title"
