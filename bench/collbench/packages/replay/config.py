"""Define the section `replay` of a configuration: the files of a recorded job."""

from collbench.config.fields import PackageSection, Several, key


class ReplaySection(PackageSection):
    """The calls of a recorded job, made again."""

    recording: Several[str] = key(
        "Files of the job: traces, one for each rank, a folder or archive of them, or a list of calls.",
        ["job/rank0.json", "job/rank1.json"],
    )
