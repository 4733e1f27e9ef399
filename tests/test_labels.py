"""Tables hold what is alike, their titles say what differs, and rows are the sizes that were asked for."""

from dataclasses import replace

from bench.catalog.operations import CALLS, usual
from bench.model.conclusions import Summary
from bench.model.records import OPTIONS, Case
from bench.report import labels

CASE = Case("reduce", "nccl", 4, "float32", 2**20)
# A value of each type that is no default, and of options that take some texts only.
VALUES = {str: "other", int: 7, float: 0.5, bool: True}
TEXTS = {"placement": "out", "recording": "ab12:3", "strategy": "plan(buckets=1024+2048)"}


def test_titles_and_labels_name_whatever_differs():
    for option in OPTIONS:
        other = replace(CASE, **{option.name: TEXTS.get(option.name, VALUES[type(option.default)])})
        assert labels.title(other) != labels.title(CASE)
        if option.name != "depth":
            assert {*labels.label(other).split(" · ")} > {*labels.label(CASE).split(" · ")}
        tables = [len(members) for _, members in labels.groups([Summary(c, 1, 9, None) for c in (CASE, other)])]
        assert tables == ([2] if option.name == "scheduling" else [1, 1])


def test_two_schedulings_are_columns_of_one_table():
    both = [replace(CASE, world_size=n, scheduling=name) for name in ("batch", "normal") for n in (4, 2)]
    assert [*labels.columns(both).values()] == ["2 ranks normal", "2 ranks batch", "4 ranks normal", "4 ranks batch"]
    assert [*labels.columns(both[:2]).values()] == ["2 ranks", "4 ranks"]
    assert labels.size_rows(both) == [sorted(both, key=lambda case: case.world_size)]
    ((title, _),) = labels.groups([Summary(case, 1, 9, None) for case in both])
    assert title == labels.title(CASE)


def test_a_training_step():
    case = usual(
        Case(
            "training_step", "gloo", 2, "float32", 0, metric="pipelined", depth=4, alignment="unaligned",
            strategy="overlap_bucket(cap_bytes=1048576)", model="tiny", batch=1, sequence=64, optimizer="sgd",
            link="2ms + 1GB/s", threads=1, clip=0.5,
        )
    )  # fmt: skip
    assert labels.label(case) == (
        "training_step · overlap_bucket 1 MiB · tiny · gloo · float32 · 2 ranks · 4 steps back to back · batch 1 · "
        "sequence 64 · sgd · link 2ms + 1GB/s · clipped to 0.5"
    )
    assert labels.label(replace(case, strategy="")).startswith("training_step · tiny · gloo")
    assert labels.title(case).startswith("training_step on gloo (float32, 4 steps back to back, overlap_bucket 1 MiB, ")
    with_two = [replace(case, strategy=name) for name in ("flat", "none")]
    assert " · flat, none · " in labels.span(with_two)


def test_a_rare_option_is_common_only_if_all_have_it():
    plain, uneven = (labels.attributes(Case("all_to_all", "gloo", 2, "float32", 64, splits=s)) for s in ("", "hot:2"))
    assert "splits" in labels.common_words([uneven, uneven]) and "splits" not in labels.common_words([plain, uneven])
    barrier = labels.attributes(usual(Case("barrier", "gloo", 2, "float32", 64)))
    assert labels.common_words([plain, barrier])["buffers"] == "rotate buffers"


def test_a_title():
    assert labels.title(CASE) == "reduce on nccl (float32, sum, in place, root 0, isolated, rotate buffers)"
    assert labels.title(usual(Case("barrier", "gloo", 2, "float32", 8, metric="pipelined", depth=20))) == (
        "barrier on gloo (pipelined (20 back to back))"
    )
    assert labels.label(usual(Case("barrier", "gloo", 1, "float32", 8))) == "barrier · gloo · 1 rank"
    objects = usual(Case("gather_object", "gloo", 2, "float32", 1024))
    assert labels.label(objects) == "gather_object · gloo · 2 ranks · 1 KiB"


def sized(*sizes, op="all_gather"):
    return [Case(op, "gloo", n, "float32", size) for n, size in sizes]


def asked(case, size):
    return replace(case, asked_bytes=size)


def test_sizes_that_were_one_before_they_were_rounded_are_one_row():
    two, three, *large = sized((2, 4096), (3, 4092), (2, 2**20), (3, 2**20 - 4), (7, 2**20 - 16))
    cases = [two, asked(three, 4096), large[0], *(asked(case, 2**20) for case in large[1:])]
    rows = labels.size_rows(cases)
    assert [labels.row_name(row) for row in rows] == ["≤ 4 KiB", "≤ 1 MiB"]
    assert [len(row) for row in rows] == [2, 3]
    (note,) = labels.rounding(cases)
    assert note.startswith("sizes are rounded down to whole equal shares, as in nccl-tests: 4092 B for 3 ranks, ")
    assert asked(three, 4096) == three  # the size that was asked for tells no cases apart


def test_sizes_that_were_asked_for_stay_apart():
    assert len(labels.size_rows(sized((2, 4096), (3, 4092)))) == 2
    assert labels.rounding(sized((2, 4096), (4, 1000), (3, 12))) == []


def test_a_span_names_everything_that_occurs():
    cases = [
        replace(CASE, dtype=d, reduce_op=r, world_size=n)
        for d in ("float32", "int8")
        for r in ("sum", "max")
        for n in (2, 4)
    ]
    assert labels.span(cases) == "reduce · nccl · float32, int8 · sum, max · 2, 4 ranks · 1 MiB"
    assert labels.span(cases[:1]) == labels.label(cases[0])
    many = [replace(CASE, op=op) for op in CALLS]
    assert labels.span(many).startswith(
        "all_reduce, all_reduce_coalesced, all_gather, all_gather_list, reduce_scatter and 17 more · nccl"
    )


def test_unusual_things_are_said_and_usual_ones_are_not():
    usually = Case("reduce", "mpi", 2, "float32", 4096)
    assert labels.words_to_show([usually]) == {"reduce": set()}
    assert labels.words_to_show([usually, replace(usually, placement="out")]) == {"reduce": {"placement"}}
    assert labels.words_to_show([replace(usually, reduce_op="max")]) == {"reduce": {"reduce_op"}}


def test_notes_say_why_there_is_no_bandwidth_and_what_is_peculiar():
    shared = Case("all_reduce", "nccl", 2, "float32", 4096, oversubscribed=True)
    assert any("share a GPU" in note for note in labels.notes([shared])) and len(labels.notes([CASE])) == 1
    assert any("ring reduce-scatter" in note for note in labels.notes([Case("reduce", "gloo", 2, "float32", 4096)]))
