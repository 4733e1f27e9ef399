"""Define the section `replay` of a configuration: the files of a recorded job."""

from collbench.config.fields import PackageSection, Several, Strict, key
from collbench.packages.replay.replayed_calls import NAME


class ReplaySection(Strict):
    """The recorded job that is replayed."""

    recording: Several[str] = key(
        "Files of the job: traces, one for each rank, a folder or archive of them, or a list of calls.",
        ["job/rank0.json", "job/rank1.json"],
    )


SECTION = PackageSection(
    NAME,
    ReplaySection,
    about="The calls of a recorded job, made again.",
    example={"recording": ["job/rank0.json"]},
    operation=NAME,
    needs="the files of a recorded job",
    cases="replays",
    takes_budget=True,
)
