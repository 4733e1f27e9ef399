"""Define the kinds of changes that joining a process group leaves in a rank."""

from collbench.model.notices import NoticeKind


class InitNotice(NoticeKind):
    """Changes that were seen in the ranks of a run."""

    # A name with a larger count than before, and the increase; other notices contain these.
    MORE = "more"
    CORES_TAKEN = "cores-taken"
    THREADS_STAYED = "threads-stayed"
    FILES_STAYED = "files-stayed"
