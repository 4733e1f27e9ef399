"""Write the sentences on changes that joining a process group leaves in a rank."""

from collections.abc import Mapping

from collbench.model.notices import NoticeKind
from collbench.packages.joining.conclusions import InitNotice
from collbench.report.notices import Sentence

SENTENCES: Mapping[NoticeKind, Sentence] = {
    InitNotice.MORE: Sentence("{count} {name}"),
    InitNotice.CORES_TAKEN: Sentence(
        "{backend}: joining took cores from a rank: {left} of {before} left (core {cores})"
    ),
    InitNotice.THREADS_STAYED: Sentence("{backend}: {count:count thread} of a rank stayed after the end ({names})"),
    InitNotice.FILES_STAYED: Sentence("{backend}: {count:count open file} of a rank stayed after the end ({names})"),
}
