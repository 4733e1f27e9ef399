"""How a run of the training benchmark goes: a bar of rounds on a terminal, a line a launch elsewhere."""

from bench.report.progress import StepProgress
from bench.training.records import Bout, Broken, Checked, Fact, Round


class RoundProgress(StepProgress):
    """Context that shows rounds done, what is being checked, and the time that is left."""

    def launching(self, bout: Bout) -> None:
        """Ranks are being started."""
        self.say(
            f"{bout.scenario.key}, launch {bout.launch}", f"{len(bout.strategies)} strategies, {bout.rounds} rounds"
        )

    def checking(self, strategy: str) -> None:
        """A strategy is checked."""
        self.show(f"checking {strategy}")

    def rounds_begin(self) -> None:
        """All strategies are checked."""
        self.show("all strategies in turn")

    def told(self, fact: Fact) -> None:
        """Something was measured, or failed."""
        match fact:
            case Round():
                self.advance()
            case Checked() if fact.failed:
                self.complain(f"refused: {fact.strategy}: {fact.failed[0].invariant}: {fact.failed[0].text}")
            case Broken():
                self.complain(f"failed: {fact.strategy or fact.scenario}: {fact.failure.text}")
