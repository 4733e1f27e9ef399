"""Show the progress of a training run: a bar of rounds on a terminal, a line for each launch elsewhere.

In: the events of `training.launch.sweep`.
"""

from bench.model.training import Fact, LaunchFailure, Round, StrategyChecks, TrainingLaunch
from bench.report.progress import StepProgress


class RoundProgress(StepProgress):
    """Context that shows rounds done, what is being checked, and the time that is left."""

    def launching(self, launch: TrainingLaunch) -> None:
        """Ranks are being started."""
        self.say(
            f"{launch.scenario.key}, launch {launch.number}",
            f"{len(launch.strategies)} strategies, {launch.rounds} rounds",
        )

    def checking(self, strategy: str) -> None:
        """A strategy is checked."""
        self.show(f"checking {strategy}")

    def rounds_begin(self) -> None:
        """All strategies are checked."""
        self.show("all strategies in turn")

    def measured(self, fact: Fact) -> None:
        """Something was measured, or failed."""
        match fact:
            case Round():
                self.advance()
            case StrategyChecks() if fact.failed:
                self.print_failure(f"refused: {fact.strategy}: {fact.failed[0].invariant}: {fact.failed[0].text}")
            case LaunchFailure():
                self.print_failure(f"failed: {fact.strategy or fact.scenario}: {fact.failure.text}")
