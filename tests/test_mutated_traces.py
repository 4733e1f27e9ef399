"""No number appears that a damaged recording does not prove: it is right, a least time, or absent.

Jobs of a few ranks are written as Kineto (with metadata, without, gloo), and changed at random: kernels and annotations
of unknown names, the first half missing, events and files in another order, ids, launches, sizes or numbers of ranks
missing, times far from their origin. A referee computes from the tag of each remaining event what may be claimed; it
uses nothing of the reader.
"""

import json
import random
from collections import Counter, defaultdict

import pytest

from collbench.model.errors import ForeignError
from collbench.packages.replay import importers as traces
from collbench.packages.replay.analyze.recorded import recorded_job
from collbench.packages.replay.report import recorded_sentence

SEEDS = 60
# Names of kernels: of a known library, and of unknown ones whose names have a collective, or nothing.
KNOWN, WORDS, STRANGE = "ncclDevKernel_{}", ("zork_all_reduce_{}", "acme::reduce_scatter<{}>", "zccl_{}"), "zork_{}"
COMPUTING = ("gemm_{}", "void at::native::reduce_kernel<{}>", "splitKreduce_{}", "flash_fwd_splitkv_combine_{}")
# What happens to the files of a job.
MUTATIONS = (
    "kernels", "annotations", "half by time", "half by order", "order", "launches", "ids", "world", "far", "events",
)  # fmt: skip


def event(kind, name, ts, dur, tid, truth, **args):
    """Return an event; `truth` is its tag: what it is, and of which call."""
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args, "truth": truth}


def kineto_job(draw, form):
    """Return the documents of a job: in each step, each rank computes, and makes calls that can overlap."""
    ranks, number = draw.choice((2, 3)), 0
    documents = [[] for _ in range(ranks)]
    durations = iter(draw.sample(range(300, 900), 6 * 3 * 3))
    equal, others, apart = draw.random() < 0.5, draw.choice((0, 0, 0.2)), draw.choice((3000, 350))
    for step in range(draw.randint(2, 6)):
        base = 10_000 * step
        for rank in range(ranks):
            documents[rank].append(event("user_annotation", f"ProfilerStep#{step}", base, 9_999, 1, None))
        for place in range(3):
            number += 1
            begin, elements = base + 500 + apart * place, 100 if equal else 100 * (place + 1)
            for events in documents:
                late, dur = draw.randint(0, 200), next(durations)  # each is unique, and identifies a call
                made, ran = begin - 400, begin + late
                dims, near = {"Input Dims": [[[elements]]], "External id": 2 * number}, ("call", number)
                events.append(event("cpu_op", "c10d::allreduce_", made, 100, 1, ("operator", number), **dims))
                if form == "described":
                    facts = {
                        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements,
                        "Out msg nelems": elements, "Group size": ranks, "Process Group Name": "0",
                        "Process Group Ranks": json.dumps([*range(ranks)]), "External id": 2 * number + 1,
                    }  # fmt: skip
                    events.append(event("cpu_op", "record_param_comms", made + 10, 80, 1, near, **facts))
                facts = {"Input Dims": [[elements]], "Input type": ["float"]}
                if form == "gloo":
                    events.append(event("user_annotation", "gloo:all_reduce", ran, dur, 2, near, **facts))
                else:
                    events.append(event("user_annotation", "nccl:all_reduce", made + 20, 60, 1, near, **facts))
                    ids = {"External id": 2 * number + 1, "correlation": number, "stream": 7}
                    events.append(event("cuda_runtime", "cudaLaunchKernel", made + 30, 5, 1, ("launch", number), **ids))
                    events.append(event("kernel", KNOWN.format(number), ran, dur, 7, ("run", number), **ids))
                if draw.random() < 0.8:  # computing beside the call
                    kind, name = ("cpu_op", "aten::mm") if form == "gloo" else ("kernel", draw.choice(COMPUTING))
                    ids = {} if form == "gloo" else {"External id": 10**6 + number, "stream": 3}
                    span = (ran + draw.randint(-200, 200), draw.randint(50, 900))
                    events.append(event(kind, name.format(number), *span, 3, ("computing", number), **ids))
                if form != "gloo" and draw.random() < others:  # communication of no call
                    name = draw.choice(WORDS).format(number)
                    span = ran + draw.randint(-300, 300), draw.randint(50, 400)
                    ids = {"External id": 2 * 10**6 + number, "stream": 9}
                    events.append(event("kernel", name, *span, 9, ("other", number), **ids))
    return [
        {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}, "traceEvents": events}
        for rank, events in enumerate(documents)
    ]


def mutated(documents, draw):
    """Change the documents at random, in place, and return the name of the mutation."""
    name = draw.choice(MUTATIONS)
    far, keep = draw.choice((1e6, 4_541_015_316_353.111)), draw.random()
    for document in documents:
        events = document["traceEvents"]
        match name:
            case "kernels":
                for found in events:
                    if found["truth"] and found["truth"][0] == "run" and draw.random() < 0.7:
                        found["name"] = draw.choice((*WORDS, STRANGE)).format(found["truth"][1])
            case "annotations":
                prefix = draw.choice(("hccl:", "zork:"))
                for found in events:
                    found["name"] = found["name"].replace("nccl:", prefix)
            case "half by time":
                middle = sorted(found["ts"] for found in events)[len(events) // 2]
                document["traceEvents"] = [found for found in events if found["ts"] >= middle]
            case "half by order":
                document["traceEvents"] = events[len(events) // 2 :]
            case "order":
                draw.shuffle(events)
            case "launches":
                document["traceEvents"] = [found for found in events if found["cat"] != "cuda_runtime"]
            case "ids":
                for found in events:
                    found["args"].pop("External id", None)
            case "world":
                document["distributedInfo"]["world_size"] = draw.choice((None, 1, 2, 8))
            case "far":
                for found in events:
                    found["ts"], found["dur"] = found["ts"] + far, found["dur"] + draw.choice((0, 0.333))
            case "events":
                document["traceEvents"] = [found for found in events if draw.random() > 0.3 * keep]
    return name


def union(spans):
    """Return the time in which at least one span is under way."""
    total, until = 0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def outside(spans, others):
    """Return the time of the union of spans in which none of the others is under way."""
    return union([*spans, *others]) - union(others)


def span(found):
    """Return begin and end of an event in ns."""
    begin = round(found["ts"] * 1000)
    return begin, begin + round(found["dur"] * 1000)


class Referee:
    """What the remaining events of a job prove, from their tags: ns."""

    def __init__(self, documents, form):
        self.runs, self.other, self.calls, self.spans = [], [], [], []
        for document in documents:
            tagged = defaultdict(list)
            for found in document["traceEvents"]:
                tagged[found["truth"][0] if found["truth"] else None].append(found)
            runs = tagged["call" if form == "gloo" else "run"]
            self.runs.append({found["truth"][1]: span(found) for found in runs})
            self.other.append([span(found) for found in tagged["other"]])
            self.calls.append({found["truth"][1] for kind in ("call", "operator") for found in tagged[kind]})
            computing = [span(found) for found in tagged["computing"]]
            # A kernel of a strange name may be anything if its call, or what leads to the call, is missing.
            launched = {found["truth"][1] for found in tagged["launch"]}
            launched |= {found["truth"][1] for found in tagged["call"] if "External id" in found["args"]}
            unknown = {
                found["truth"][1]: span(found)
                for found in runs
                if found["name"] == STRANGE.format(found["truth"][1])
                and found["truth"][1] not in launched & self.calls[-1]
            }
            self.spans.append((computing, unknown))

    def proven(self, rank):
        """Return the spans that communicated."""
        return [span for number, span in self.runs[rank].items() if number not in self.spans[rank][1]]

    def exposed(self, timed, rank):
        """Return the least and the most time in which nothing was computed during these calls."""
        computing, unknown = self.spans[rank]
        chosen = [self.runs[rank][number] for number in timed]
        return outside(chosen, [*computing, *unknown.values()]), outside(chosen, computing)


def timed_calls(recorded, job_rank, runs):
    """Return the tags of the calls of a rank that have a duration, by begin and end; assert that each one is true."""
    found, by_length = [], defaultdict(list)
    for number, (begin, end) in runs.items():
        by_length[end - begin].append(number)
    for call in recorded.ranks[job_rank].calls:
        if call.duration_s is not None:
            numbers = by_length[round(call.duration_s * 1e9)]
            assert numbers, f"a call of {call.duration_s} s"
            found.append(numbers.pop())
    return found


def judged(documents, form, recorded, counts):
    """Assert that the conclusions on a job are proven by its documents."""
    job, referee = recorded_job(recorded), Referee(documents, form)
    sentence, share = recorded_sentence(job), 1e-9 / sum(rank.steps for rank in recorded.ranks)
    order = [rank.rank for rank in recorded.ranks]
    world = len(documents)
    assert sorted(order) == [*range(world)]
    assert job.world_size in {world, None} or any(
        d["distributedInfo"]["world_size"] == job.world_size for d in documents
    )
    assert all(call.operation == "all_reduce" and call.elements_in in {100, 200, 300, None} for rank in recorded.ranks
               for call in rank.calls)  # fmt: skip
    for place, rank in enumerate(order):
        assert len(recorded.ranks[place].calls) <= len(referee.calls[rank])
    if job.total is None or job.total.in_calls_s is None:
        counts["absent"] += 1
        return
    timed = {rank: timed_calls(recorded, place, referee.runs[rank]) for place, rank in enumerate(order)}
    proven = sum(union([referee.runs[rank][number] for number in timed[rank]]) for rank in order) * share
    everything = sum(union([*referee.proven(rank), *referee.other[rank]]) for rank in order) * share
    total = job.total
    # Calls outside the marked steps are left out, and said.
    outside_steps = any(call.step is None for rank in recorded.ranks for call in rank.calls) and recorded.steps > 1
    assert total.in_calls_s <= proven * (1 + 1e-6)
    if "at least" not in sentence.split("(Kineto")[0] and not outside_steps:
        assert total.in_calls_s == pytest.approx(everything, rel=1e-5), sentence
        counts["complete"] += 1
    else:
        counts["at least"] += 1
    assert job.unclaimed_s <= everything * (1 + 1e-6)
    least = most = 0.0
    for rank in order:
        low, high = referee.exposed(timed[rank], rank)
        least, most = least + low * share, most + high * share
    if total.exposed_s is not None and not outside_steps:
        assert least - 1e-12 <= total.exposed_s * (1 + 1e-5) + 1e-11 and total.exposed_s <= most * (1 + 1e-5) + 1e-11
        counts["exposed"] += 1
    assert total.waited_s >= 0 and total.unsplit_s >= 0
    for value in (total.in_calls_s, total.moved_s, total.waited_s, total.unsplit_s, total.exposed_s or 0.0):
        assert value == 0 or value > 1e-10 / len(order), f"{value} s is rounding"
    # Without a common clock, the shortest call of a group moved data for as long as it lasted.
    common = set.intersection(*map(set, timed.values()))
    moved = sum(min(b - a for a, b in (referee.runs[rank][number] for rank in order)) for number in common) * share
    # Ranks that lost different calls of a step, but equally many, cannot be known from ranks that lost none.
    steps = {number: (number - 1) // 3 for calls in referee.calls for number in calls}
    left = [(calls, set(runs)) for calls, runs in zip(referee.calls, referee.runs, strict=True)]
    mistakable = any(
        len({tuple(frozenset(n for n in kept if steps.get(n) == step) for kept in both) for both in left}) > 1
        and len({sum(steps[n] == step for n in calls) for calls, _ in left}) == 1
        for step in set(steps.values())
    )
    if not outside_steps and not mistakable:
        assert total.moved_s <= moved * world * (1 + 1e-5), sentence
        lasted = sum(b - a for number in common for a, b in (referee.runs[rank][number] for rank in order)) * share
        assert total.waited_s <= (lasted - moved * world) * (1 + 1e-5) + 1e-12, sentence


@pytest.mark.parametrize("form", ["described", "annotated", "gloo"])
def test_no_number_appears_that_a_kineto_file_does_not_prove(tmp_path, form):
    counts = Counter()
    for seed in range(SEEDS):
        draw = random.Random(f"{form} {seed}")
        documents = kineto_job(draw, form)
        names = [mutated(documents, draw) for _ in range(draw.randint(0, 3))]
        paths = [tmp_path / f"trace{place}.json" for place in range(len(documents))]
        for path, document in zip(draw.sample(paths, len(paths)), documents, strict=True):
            path.write_text(json.dumps(document))
        try:
            recorded = traces.read(draw.sample(paths, len(paths)))
        except ForeignError:
            counts["refused"] += 1
            continue
        try:
            judged(documents, form, recorded, counts)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {names}: {error}") from None
    assert counts["complete"] > SEEDS / 10 and counts["exposed"] > SEEDS / 4, counts
