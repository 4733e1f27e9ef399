"""Define the kinds of changes that joining a process group leaves in a rank."""

from collbench.model.notices import NoticeKind


class InitNotice(NoticeKind):
    """Changes that were seen in the ranks of a run."""

    # A name with a larger count than before, and the increase; other notices contain these.
    MORE = "more", "{count} {name}"
    CORES_TAKEN = "cores-taken", "{backend}: joining took cores from a rank: {left} of {before} left (core {cores})"
    THREADS_STAYED = "threads-stayed", "{backend}: {count:count thread} of a rank stayed after the end ({names})"
    FILES_STAYED = "files-stayed", "{backend}: {count:count open file} of a rank stayed after the end ({names})"
