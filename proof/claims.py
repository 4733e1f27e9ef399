"""List all claims, in the order of the page; without the weekly ones, they take 43 minutes on two idle cores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from proof import coverage, links_recovered, live, naming, overhead, sides, training_steps, tune, unchanged, virtual
from proof.claim import Limit, Line
from proof.links import unsupported, unsupported_tun
from proof.rig import Rig
from proof.virtual_gpu import rig as virtual_gpu

# What outcomes depend on, as paths in the repository.
BENCH = "bench/collbench"
INTERVALS = (f"{BENCH}/stats/intervals.py",)
CONCLUDED = (f"{BENCH}/analyze", *INTERVALS, *(f"{BENCH}/stats/{name}.py" for name in ("series", "verdicts")))
LOOKS = f"{BENCH}/stats/spending.py"
MEASURING = (
    "proof/rig.py", f"{BENCH}/catalog", f"{BENCH}/config", f"{BENCH}/launch", f"{BENCH}/machine",
    f"{BENCH}/model/records.py", f"{BENCH}/planning", f"{BENCH}/protocol", f"{BENCH}/rank",
)  # fmt: skip
MEASURED = (*MEASURING, *CONCLUDED)
ON_LINKS = (*MEASURED, "proof/links.py", "proof/relay.py")
RECORDED = ("tools/recorded_job.py", f"{BENCH}/packages/replay/analyze", f"{BENCH}/packages/replay/importers")
AB = (*MEASURED, LOOKS, f"{BENCH}/cli", "proof/overhead.py")
STEPS = tuple(f"{BENCH}/packages/training/{place}" for place in ("analyze", "operation.py", "planning", "rank"))
TRAINED = (*MEASURED, *STEPS)
EXPOSED = (*INTERVALS, f"{BENCH}/stats/verdicts.py", f"{BENCH}/analyze/round_series.py")
TABLES = (
    *INTERVALS, f"{BENCH}/stats/verdicts.py", f"{BENCH}/packages/tune/analyze/choosing.py",
    f"{BENCH}/packages/tune/rules.py", "proof/tune_truth.csv.gz",
)  # fmt: skip
TUNED = (*MEASURED, f"{BENCH}/packages/tune")
VIRTUAL = (*MEASURED, "proof/virtual_gpu")
NOISE = "proof/noise.py"


@dataclass(frozen=True)
class Claim:
    """A protocol that is fixed before it is run."""

    run: Callable[[Rig, int], list[Line]]
    # A short description of `run`.
    protocol: str
    # Trials of a full and of a quick proof; 0: the claim is not run.
    trials: int
    quick: int
    # Duration in a full proof, alone on two cores.
    minutes: float
    # Files and folders on which the outcome depends, beside the module of `run`.
    paths: Sequence[str]
    # Returns why the claim cannot be tried here, such as "virtual GPUs are not built: make virtual-gpu", or None.
    missing: Callable[[], str | None] = lambda: None
    # True if nothing is timed, so that several such claims can run at once.
    simulated: bool = False
    # True if the claim takes too long for `make prove`; `make prove-weekly` runs it.
    weekly: bool = False
    # Earlier version of the protocol → its error.
    replaced: Mapping[int, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the protocol."""
        return max(self.replaced, default=0) + 1

    @property
    def files(self) -> list[str]:
        """All files and folders on which the outcome depends."""
        return [f"{self.run.__module__.replace('.', '/')}.py", "proof/claim.py", *self.paths]


BY_POINTS = {0: "points were judged, not intervals"}
ONE_LAUNCH = {1: "each launch was a run of its own, most of which was its start"}
BY_MEDIANS = {0: "it was about medians, whose interval is printed no more"}
PUNISHED = '"contains 1" punishes precision, medians of dependent blocks were compared, ±5 % was allowed'
REFILLED = "the suite refilled its buffer now and then, which made the next call of MPI slower; a bare loop does not"
LARGER = "a larger model, whose files took as long to read as the job"
DISTANCE = "two calls, whose time holds the ranks' distance after a barrier, at times a millisecond a call"
NARROW = Limit("9 of 10 need an interval of ±3 %: --budget 3min, or --set scheduling=batch, narrows it", least=0.4)
WIDE = Limit("launches may scatter too much for the budget: --budget 5min narrows the interval of B / A", least=0.4)
BY_CHANCE = "unchanged cases are named in up to 5 of 100 tries (simulated-ab): repeat an ab on which much depends"
NAMED, NOT_ALONE = Limit(BY_CHANCE, most=0.15), Limit(BY_CHANCE, least=0.8)
UNLIMITED = "no limit said what a rule that errs in up to 5 of 100 tries cannot promise"
CHEAP = "a plant of 5 % costs 3.3 % (40 blocks of a bare loop), less than the change that was asked for"
NOMINAL = "what a plant costs was not measured"
SLEPT = "the plant slept before the call, so that it shrank with scheduling, and launches alternated"

CLAIMS: dict[str, Claim] = {
    "rates": Claim(
        links_recovered.rates,
        "links shaped to 100 Mbit/s, 1 and 2 Gbit/s between two network namespaces, 4 launches; trials: links",
        3, 1, 1.8, ON_LINKS, unsupported, replaced=BY_POINTS,
    ),
    "delays": Claim(
        links_recovered.delays,
        "links with 1, 5 and 20 ms one-way delay between two network namespaces, 4 launches; trials: delays",
        3, 1, 1, ON_LINKS, unsupported_tun, replaced=BY_POINTS,
    ),
    "matrix": Claim(
        links_recovered.matrix,
        "pairwise exchanges of 4 network namespaces on a bridge, one of them at half the rate, and as often none",
        20, 1, 1.3, ON_LINKS, unsupported, replaced=BY_POINTS,
    ),
    "late-rank": Claim(
        naming.late_rank,
        "60 all-reduces of 4 and 256 KiB at 2 or 4 ranks, one of them 2 ms late, and as often none",
        40, 4, 1.4, MEASURED, replaced=BY_POINTS,
    ),
    "recorded-late-rank": Claim(
        naming.in_recorded_jobs,
        "DDP on 2 or 4 gloo ranks, ten steps recorded by torch's profiler; a rank is 100 ms late in each, as often one "
        "that is drawn per step, and half as often none",
        12, 1, 3.1, RECORDED,
        replaced={1: LARGER, 2: "nobody was made late, which does not make ranks equal: those named had more CPU time"},
    ),
    "overhead": Claim(
        overhead.against_a_bare_loop,
        "blocks of calls by the suite and by bare loops in random order in one process group, loop threads under "
        "SCHED_BATCH; 90 % interval over the blocks; trials: blocks",
        48, 4, 2.7, MEASURING,
        replaced={0: PUNISHED, 1: REFILLED, 2: "40 blocks decided one of six lines within ±2 %; now 48, and ±3 %"},
    ),
    "mpi-overhead": Claim(
        overhead.mpi_against_a_bare_loop, "the same through mpi4py",
        100, 4, 0.4, MEASURING, overhead.without_mpi, replaced={0: PUNISHED, 1: REFILLED},
    ),
    "plants": Claim(
        overhead.plants,
        "bare loops of all-reduces with 2 and 20 % planted and without, and the suite with both plants, in random "
        "order in one process group, loop threads under SCHED_BATCH; trials: blocks",
        36, 4, 1.9, MEASURING,
        replaced={1: "a plant was held against its share, where ranks that share cores pay more"},
    ),
    "live-table": Claim(
        live.live_table,
        "sweeps of 3 sizes with 2 ranks under SCHED_BATCH, with a live table and with nothing shown, in random order; "
        "90 % interval over the pairs; trials: pairs",
        30, 4, 1.9, (*MEASURED, f"{BENCH}/report/live.py", f"{BENCH}/report/progress.py"), weekly=True,
    ),
    "coverage-launches": Claim(
        coverage.over_launches, "intervals over 8 simulated launches of known mean, of 1, 3 and 20 cases",
        4000, 400, 0.5, INTERVALS, simulated=True,
        replaced={0: "3 to 10 launches, and points were judged", 1: "the skewness of launches was not corrected"},
    ),
    "coverage-blocks": Claim(
        coverage.within_a_launch, "intervals from 8 blocks of 20 iterations of a simulated launch of known mean",
        4000, 400, 0.1, INTERVALS, simulated=True, replaced=BY_MEDIANS,
    ),
    "coverage-one-launch": Claim(
        coverage.of_one_launch, "intervals of one simulated launch with a slow mode of ten calls, five designs",
        4000, 400, 0.1, INTERVALS, simulated=True,
    ),
    "coverage-exposed": Claim(
        coverage.of_exposed, "exposed communication of 8 strategies in 3 and 5 simulated launches of 8 rounds",
        4000, 400, 0.3, EXPOSED, simulated=True,
        replaced={
            0: "the interval changed with the time of a step, and kinds were one",
            1: "differences were drawn, all with the same scatter of their own, and not the steps that they are of",
        },
    ),
    "coverage-real-launches": Claim(
        coverage.real_launches, "8 launches drawn from ten sets of 16 real ones, 64 KiB, 1 and 16 MiB, 2 ranks",
        4000, 200, 0.1, (*INTERVALS, NOISE), simulated=True, replaced={1: "skewness was not corrected"},
    ),
    "coverage-correlated": Claim(
        coverage.correlated, "intervals over 8 simulated launches that correlate with those before, 1, 3 and 20 cases",
        4000, 400, 0.5, INTERVALS, simulated=True,
        replaced={1: "0.5 was demanded, where real launches showed 0.18 and 0.30; skewness was not corrected"},
    ),
    "coverage-next-run": Claim(
        coverage.next_runs, "halves of the ten sets, and of sets under SCHED_BATCH, as two runs of 8 launches that "
        "follow each other; trials and units: sets under SCHED_BATCH",
        3, 2, 4.2, (*MEASURED, NOISE), replaced={1: "intervals that are wider than need be were a miss"},
    ),
    "coverage-real-blocks": Claim(
        coverage.real_stretches, "stretches of 5 blocks of launches of 2 s a case; trials and units: launches",
        10, 2, 1.2, (*MEASURED, NOISE), replaced=BY_MEDIANS,
    ),
    "coverage-real-exposed": Claim(
        coverage.real_steps, "5 launches drawn from sets of 8 real ones of training steps; trials and units: sets",
        5, 2, 1.7, (*TRAINED, NOISE),
        replaced={0: "silence of second copies says little: few intervals, and wide ones"},
    ),
    "simulated-ab": Claim(
        unchanged.simulated_sides, "ab of identical sides on the ten sets, drift through pairs, 5 % is allowed",
        2000, 100, 7, (*CONCLUDED, LOOKS, NOISE), simulated=True,
        replaced={0: "drift was added equally to both sides of a pair and cancelled, and there was one set"},
    ),
    "simulated-compare": Claim(
        unchanged.simulated_runs,
        "compare of unchanged runs, an occasion moves all cases in one direction, 3 cases of the ten sets and 20 "
        "simulated ones, whose scatter is one, or falls with their time; +70 % in the largest",
        300, 100, 1.5, (*CONCLUDED, NOISE), simulated=True,
        replaced={
            0: "it had a ledger, and there was one set",
            1: "each case had an occasion of its own, as wide as its launches scatter, and there were three cases",
            2: "one scatter was simulated for all cases, where that of real ones falls with their time",
        },
    ),
    "simulated-compare-finds": Claim(
        unchanged.simulated_finds,
        "compare of three and four runs on each side, 20 cases: 50 % slower, occasions 0.6 times as wide as launches; "
        "four unchanged ones on occasions of four widths",
        600, 100, 2, (*CONCLUDED, NOISE), simulated=True, replaced={0: "of four runs on each side nothing was asked"},
    ),
    "unchanged-runs": Claim(
        unchanged.real_runs, "disjoint pairs of real runs of 4 launches, quarters of the ten sets, minutes apart",
        20, 2, 0.1, (*MEASURED, NOISE),
        replaced={0: "runs followed each other at once", 1: "runs like those of the sets were made for it alone"},
    ),
    "ab-identical": Claim(
        sides.identical("normal", 120, 0.8, NAMED, WIDE), "three sizes, 120 s", 20, 0, 40, AB, weekly=True,
        replaced={0: "launches alternated", 1: "60 s, in which nothing was shown to be SAME", 2: UNLIMITED},
    ),
    "ab-identical-batch": Claim(
        sides.identical("batch", 60, 0.9, NAMED, WIDE), "three sizes, 60 s, scheduling: batch",
        20, 0, 20, AB, weekly=True, replaced={1: UNLIMITED},
    ),
    "ab-all-by-5": Claim(
        sides.planted(None, "normal", "7.5%", 90, "5%", 0.9, NARROW), "7.5 % in all of three sizes, 90 s",
        10, 0, 17, AB, weekly=True, replaced={0: SLEPT, 1: NOMINAL, 2: CHEAP},
    ),
    "ab-all-by-2": Claim(
        sides.planted(None, "batch", "2%", 90, "1%", 0.9, None), "2 % in all of three sizes, 90 s, scheduling: batch",
        10, 0, 15, AB, weekly=True, replaced={0: SLEPT, 1: NOMINAL},
    ),
    "ab-one-by-20": Claim(
        sides.planted(sides.ONE, "normal", "20%", 60, "5%", 1.0, NOT_ALONE), "20 % in one of six sizes, 60 s",
        10, 1, 10, AB, weekly=True, replaced={0: SLEPT, 1: NOMINAL, 2: UNLIMITED},
    ),
    "planted-wait": Claim(
        training_steps.planted_wait, "a synchroniser that waits 5 ms against one that does not; trials: launches",
        8, 4, 0.5, (*TRAINED, "proof/synchronisers.py"), replaced=BY_POINTS,
    ),
    "stamps": Claim(
        training_steps.stamps,
        "CPU times of a step of one model with all stamps and by hand, in random order; 90 % interval over the blocks; "
        "trials: blocks",
        20, 4, 1.6, STEPS,
        replaced={0: "dependent steps were the units", 1: "each side had a model of its own, and wall time counted"},
    ),
    "buckets": Claim(
        training_steps.buckets_on_a_link, "seven plans of buckets on a link shaped to 1 Gbit/s; trials: launches",
        2, 0, 1.8, (*TRAINED, *ON_LINKS), unsupported, replaced={0: "it took 10 minutes"},
    ),
    "tune-tables": Claim(
        tune.on_truth,
        "tables from kept launches of Open MPI (96 cells, 40 launches): 3 for the race, 24 for the proof, 13 to judge; "
        "and, 10 times as many, of copies of the default: log ratios of pairs around 0, of either sign; trials: tables",
        30, 5, 1.3, TABLES, simulated=True,
        replaced={0: "choices that scatter unevenly around the default were called copies; 16 launches for the proof"},
    ),
    "tune-copies": Claim(
        tune.real_copies,
        "real tables of Open MPI whose five candidates are its default; 4 rounds, then 8; trials: tables",
        5, 0, 4, TUNED, weekly=True,
    ),
    "virtual-times": Claim(
        virtual.times,
        "virtual GPUs: 6 operations, 3 metrics, 1 KiB to 16 MiB, with 2 ranks one all_reduce of 1 GiB, 12 iterations "
        "each, with 2 ranks beside a busy program on each core; each mean within 0.5 % of the rule; trials: 2, 4 ranks",
        2, 1, 2.7, VIRTUAL, virtual_gpu.missing,
        replaced={3: "8 ranks and 1 GiB took 10 minutes on two cores, then 4 ranks beside busy programs 2 minutes"},
    ),
    "virtual-perf": Claim(
        virtual.perf,
        "virtual GPUs: 20 calls, each 5 ms of the host and 12 µs of the device, or 5 ms of the device; device times of "
        "two; 90 % interval; trials: runs per rule",
        6, 2, 1.8, (*VIRTUAL, f"{BENCH}/packages/interop/cli", "proof/overhead.py"), virtual_gpu.missing,
        replaced={1: DISTANCE, 2: "one run was judged as a point: +4 and +11 %, where five others gave +2 to +4 %"},
    ),
    "virtual-late": Claim(
        virtual.late,
        "virtual GPUs: one of two begins 500 µs late, as often none, and half as often 200 µs; trials: launches",
        20, 2, 2.2, VIRTUAL, virtual_gpu.missing,
        replaced=ONE_LAUNCH | {2: "200 µs, which the distance after a barrier cancels at times: 18 of 20 were named"},
    ),
    "virtual-slow-link": Claim(
        virtual.slow_link,
        "virtual GPUs: one of four sends and receives at half the rate, and as often none; trials: launches",
        20, 1, 1.1, VIRTUAL, virtual_gpu.missing, replaced=ONE_LAUNCH,
    ),
    "virtual-gate": Claim(
        virtual.gate, "a gate over 8 hosts of 2 virtual GPUs under torchrun, one at 80 % of the rate; trials: fleets",
        1, 0, 2.3, (*VIRTUAL, f"{BENCH}/packages/gate"), virtual_gpu.missing_hosts,
    ),
    "virtual-training": Claim(
        virtual.training,
        "virtual GPUs: tails of six strategies on a chain of 8 layers of 1 MiB, 2 and 4 GPUs; trials: rules",
        2, 1, 2, (*VIRTUAL, *STEPS), virtual_gpu.missing,
        replaced={1: "four ranks on two cores waited for each other for 20 % of a tail of 6 ms"},
    ),
    "virtual-tune": Claim(
        tune.crossovers,
        "virtual GPUs: two operations, 2 GPUs, a latency and a bandwidth per algorithm and protocol; trials: tables",
        1, 0, 4, (*VIRTUAL, *TUNED), virtual_gpu.missing, weekly=True,
        replaced={1: "five operations with 2 and 4 GPUs took 20 minutes"},
    ),
}  # fmt: skip
