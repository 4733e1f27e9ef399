"""Write the notices on training steps."""

from collections.abc import Mapping

from bench.model.notices import NoticeKind
from bench.packages.training.conclusions import TrainingNotice
from bench.report.notices import Sentence

_WHERE = "{model} · {backend} · {ranks:count rank}{link:after  · }: "
_BECAUSE = ": other processes used the CPU"
SENTENCES: Mapping[NoticeKind, Sentence] = {
    TrainingNotice.BLOCKS_LEFT_OUT: Sentence(f"{_WHERE}{{dropped}} of {{blocks}} timed blocks left out{_BECAUSE}"),
    TrainingNotice.BLOCKS_KEPT: Sentence(
        f"{_WHERE}too much of {{strategies}} disturbed to leave it out, so all of those kept{_BECAUSE}"
    ),
    TrainingNotice.ALL_BLOCKS_KEPT: Sentence(
        f"{_WHERE}too much of all strategies disturbed to leave it out, so all of those kept{_BECAUSE}"
    ),
}
