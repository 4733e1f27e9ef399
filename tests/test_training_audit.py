"""`audit`: what a table cannot have measured is named with its factor; where nothing follows, that is said."""

import pytest

import training_fixtures
from bench.cli import call
from bench.model.errors import ForeignError
from bench.training import customary_tables, published
from bench.training.analyze.audit import audit
from bench.training.report import tables
from conftest import ROOT, WIDE

HEADER = (
    "table,source,verified,hardware,backend,world_size,model,seq_len,global_batch,strategy,bucket_mb,size_mb,"
    "metric,value,unit,note"
)
# Step and communication in seconds, as a write-up with a timer behind a device synchronise reports them.
XL = {
    ("naive", ""): (0.4166874, 0.0903578),
    ("flat", ""): (0.4114700, 0.0848894),
    ("overlap_param", ""): (0.3553649, 0.0011528),
    ("overlap_bucket", "1"): (0.3573745, 0.0017477),
    ("overlap_bucket", "1000"): (0.3581522, 0.0006799),
}


def line(strategy, metric, value, unit="s", bucket="", verified="read", source="a write-up", table="ddp_step"):
    return f"{table},{source},{verified},2 GPU,nccl,2,xl,256,4,{strategy},{bucket},,{metric},{value},{unit},"


def lines(rows, **more):
    found = []
    for (strategy, bucket), (step, comm) in rows.items():
        found.append(line(strategy, "step_time", step, bucket=bucket, **more))
        if comm is not None:
            found.append(line(strategy, "comm_time_reported", comm, bucket=bucket, **more))
    return found


def judged(*texts, tolerance=0.01):
    return audit(published.read("\n".join([HEADER, *texts]), "t.csv"), tolerance)


def only(*texts, **options):
    (group,) = judged(*texts, **options).groups
    return group


def test_understated_rows_and_their_factors():
    group = only(*lines(XL))
    assert group.bases == pytest.approx({"naive": 0.3263296, "flat": 0.3265806})
    assert group.compute_s == pytest.approx(0.3264551)
    factors = {finding.entry.name: round(finding.factor) for finding in group.understated}
    assert factors == {"overlap_param": 25, "overlap_bucket 1 MB": 18, "overlap_bucket 1000 MB": 47}
    assert [finding.entry.name for finding in group.wrong] == list(factors)


def test_what_is_exposed_is_the_step_beyond_computing_and_doubt_counts_for_the_row():
    (finding,) = only(*lines(XL)).understated[:1]
    assert finding.exposed_s == pytest.approx(0.3553649 - 0.3264551)
    assert finding.least_s == pytest.approx(finding.exposed_s - 0.01 * 0.3264551)


def test_an_honest_overlapped_row_can_be_right():
    honest = {**XL, ("overlap_param", ""): (0.3553649, 0.0270)}
    group = only(*lines({key: honest[key] for key in [("naive", ""), ("flat", ""), ("overlap_param", "")]}))
    assert not group.wrong and group.reason is None


def test_a_deviation_that_explains_the_difference_acquits():
    rows = lines({key: XL[key] for key in [("naive", ""), ("flat", ""), ("overlap_param", "")]})
    assert only(*rows).wrong
    assert not only(*rows, line("overlap_param", "step_time_std", 0.03)).wrong


def test_rows_that_disagree_allow_no_conclusion_unless_the_tolerance_does():
    rows = lines(
        {("naive", ""): (1.4067, 0.4981), ("flat", ""): (1.3652, 0.5002), ("overlap_param", ""): (1.0757, 0.01)}
    )
    group = only(*rows)
    assert group.compute_s is None and "disagree by 4.9 %" in group.reason
    assert only(*rows, tolerance=0.06).compute_s is not None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (lines({("overlap_param", ""): (0.355, 0.001)}), "no row of a strategy that blocks"),
        (lines({("naive", ""): (0.41, 0.09), ("ddp", ""): (0.355, 0.001)}), "no second row confirms"),
        (lines({("naive", ""): (0.41, 0.09), ("flat", ""): (0.41, None)}), "flat: no comm time"),
        (
            [*lines({("naive", ""): (0.41, 0.09)}), line("flat", "step_time", 0.4, unit="")],
            "flat: step_time has no unit",
        ),
        ([*lines({("naive", ""): (0.41, 0.09)}), line("flat", "step_time", "fast")], "'fast', which is no number"),
        ([*lines({("naive", ""): (0.41, 0.09)}), line("flat", "step_time", "nan")], "'nan', which is no number"),
        ([*lines(XL), line("naive", "step_time", 0.5), line("flat", "step_time", 0.5)], "is there twice"),
    ],
)
def test_groups_without_a_conclusion_say_why(rows, reason):
    result = judged(*rows)
    assert not result.conclusive and reason in result.groups[0].reason


def test_a_step_without_synchronisation_is_enough():
    group = only(*lines({("none", ""): (0.3264, None), ("overlap_param", ""): (0.3553, 0.0011)}))
    assert group.compute_s == 0.3264 and [finding.entry.name for finding in group.wrong] == ["overlap_param"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lines({("naive", ""): (0.09, 0.41)}), "not below its step time"),
        (lines({("ddp", ""): (0.3, -0.1)}), "must not be negative"),
        (lines({("ddp", ""): (0, 0.1)}), "must be above 0"),
        ([*lines({("ddp", ""): (0.3, 0.1)}), line("ddp", "comm_frac", 90, unit="%")], "90.00% is not comm / step"),
        (lines({**XL, ("ddp", ""): (0.2, 0.01)}), "shorter than T_compute"),
    ],
)
def test_what_cannot_be_right_by_itself(rows, words):
    assert any(words in reason for finding in only(*rows).wrong for reason in finding.wrong)


def test_a_share_that_fits_is_no_fault():
    rows = [*lines({("ddp", ""): (0.3, 0.1)}), line("ddp", "comm_frac", 33.3, unit="%")]
    assert not only(*rows).wrong


def test_sharded_optimizers_are_not_judged_by_the_computing_of_others():
    group = only(*lines({("naive", ""): XL["naive", ""], ("flat", ""): XL["flat", ""], ("zero1", ""): (0.36, 0.001)}))
    assert not group.wrong and "something else" in group.findings[-1].note


def test_groups_are_apart_by_source_and_other_tables_are_counted():
    rows = lines(XL) + lines({("ddp", ""): (0.3, 0.1)}, source="b") + [line("", "time", 1, table="allreduce")]
    result = judged(*rows, line("naive", "exposed_vs_compute", 9), line("naive", "step_time", 9, verified="derived"))
    assert [group.reason is None for group in result.groups] == [True, False]
    assert result.published.others == {"allreduce": 1}
    assert result.published.passed == {"of other metrics": 1, "derived from others": 1}


def test_units_are_converted_and_order_mark_line_ends_and_further_columns_do_no_harm():
    rows = [
        line(s, m, v * 1e3, unit="ms", bucket=b) for (s, b), p in XL.items() for m, v in zip(METRICS, p, strict=True)
    ]
    text = "\ufeff" + "\r\n".join([f"{HEADER},more", *(f"{row},x,y" for row in rows)])
    (group,) = audit(published.read(text, "t.csv")).groups
    assert len(group.understated) == 3 and group.compute_s == pytest.approx(0.3264551)


METRICS = ("step_time", "comm_time")


def test_a_missing_column_is_named():
    with pytest.raises(ForeignError, match="column unit missing"):
        published.read(HEADER.replace(",unit", ""), "t.csv")


# ── the verb ─────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def audited(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", WIDE)

    def run(content, *options):
        file = tmp_path / "t.csv"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = call(["audit", str(file), *options])
        return code, *capsys.readouterr()

    return run


def table(rows):
    return "\n".join([HEADER, *rows])


def test_verb_names_the_factors_and_exits_with_1(audited):
    code, out, _ = audited(table(lines(XL)))
    assert code == 1 and "naive 326.3 ms, flat 326.6 ms" in out and "18 to 47 times" in out
    assert "\nstrategy  " in out


def test_verb_exit_codes_without_a_fault(audited):
    blocking = lines({("naive", ""): XL["naive", ""], ("flat", ""): XL["flat", ""]})
    assert audited(table(blocking))[0] == 0
    code, out, _ = audited(table(blocking[:2]))
    assert code == 3 and "No conclusion" in out
    code, out, _ = audited(table([line("", "time", 1, table="allreduce")]))
    assert code == 3 and "1 of table allreduce" in out


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(range(256)) * 20, HEADER + "\n" + '"open', "a,b\n1,2"])
def test_files_that_are_no_table_cost_one_line(audited, content):
    code, out, err = audited(content)
    assert code == 2 and not out and err.startswith("error: ") and "t.csv" in err and err.count("\n") == 1


def test_no_such_file_and_no_such_tolerance(audited, capsys, tmp_path):
    assert call(["audit", str(tmp_path / "none.csv")]) == 2
    assert audited(table(lines(XL)), "--tolerance", "lots")[0] == 2


def test_text_of_the_file_cannot_break_the_table_or_the_terminal(audited):
    _, out, _ = audited(table(lines(XL, source="a | b \x1b[31m red")))
    assert "\x1b" not in out and "a / b" in out


# ── tables as people write them ──────────────────────────────────────────────────────────────────
MARKDOWN = """
# xl, 2 GPUs

| Method | Step time (ms) | Comm. time (ms) | comm % |
|:-------|---------------:|----------------:|-------:|
| Naive DDP | 416.7 ± 1.2 | 90.36 | 21.7 |
| **Flat DDP** | 411.5 | 84.89 | 20.6% |
| Overlap, individual parameters | 355.4 | 1.15 | 0.32 |
| Overlap Bucketed (10 MB) | 357.4 | 1.75 | 0.49 |
"""
CUSTOMARY = """\
model,backend,world_size,global_batch_size,warmup_steps,benchmark_steps,strategy,step_time_avg,\
step_time_std,comm_time_avg,comm_frac_avg
xl,nccl,2,4,5,10,naive,416.7,1.2,90.36,0.217
xl,nccl,2,4,5,10,flat,411.5,1.0,84.89,0.206
xl,nccl,2,4,5,10,bucketed 1MB,357.4,1.0,1.75,0.0049
"""
OTHER_WORDS = """\
variant\tms/iter\tcommunication ms\tbucket size\tGPU hours
no sync\t326.4\t\t\t3
bucketed\t357.4\t1.75\t1 GB\t4
"""


def test_a_markdown_table_is_read(audited):
    code, out, _ = audited(MARKDOWN)
    assert code == 1 and "## xl, 2 GPUs" in out and "naive 326.3 ms, flat 326.6 ms" in out
    assert "overlap_param  " in out and "overlap_bucket 10 MB  " in out and "18 to 25 times" in out


def test_the_customary_columns_are_read_once_a_unit_is_known(audited):
    code, out, _ = audited(CUSTOMARY)
    assert code == 3 and "step_time has no unit" in out
    code, out, _ = audited(CUSTOMARY, "--unit", "ms")
    assert code == 1 and "xl, 2 ranks, nccl, batch 4" in out and "overlap_bucket 1 MB  " in out
    code, _, err = audited(CUSTOMARY, "--unit", "min")
    assert code == 2 and err.count("\n") == 1


def test_what_is_not_understood_is_named(audited):
    code, out, _ = audited(OTHER_WORDS)
    assert code == 1 and "Columns not understood: GPU hours." in out and "overlap_bucket 1000 MB  " in out


def test_own_summary_is_read(audited, tmp_path):
    text = tables.to_csv(training_fixtures.analysis())
    code, out, _ = audited(text)
    assert code in {0, 1, 3} and "no unit" not in out and "not understood" not in out


def test_the_sample_in_the_docs(audited):
    code, out, _ = audited((ROOT / "docs/step-times.md").read_text())
    assert code == 1 and "not understood" not in out


@pytest.mark.parametrize(
    ("heading", "column", "unit"),
    [
        ("Step time (ms)", "step_time", "ms"),
        ("step_time_ms", "step_time", "ms"),
        ("ms/iter", "step_time", "ms"),
        ("Iteration time [s]", "step_time", "s"),
        ("seconds per step", "step_time", "s"),
        ("step_time_std", "step_time_std", ""),
        ("Std. dev. of step (ms)", "step_time_std", "ms"),
        ("comm_time_avg", "comm_time", ""),
        ("Communication (ms)", "comm_time", "ms"),
        ("comm overhead (%)", "comm_frac", "%"),
        ("comm_frac_avg", "comm_frac", ""),
        ("% of step in communication", "comm_frac", "%"),
        ("# GPUs", "world_size", ""),
        ("Implementation", "strategy", ""),
        ("Bucket size (MB)", "bucket_mb", ""),
        ("Context length", "seq_len", ""),
    ],
)
def test_headings_in_other_words(heading, column, unit):
    found = customary_tables._heading(heading)
    assert (found.column, found.unit) == (column, unit)


@pytest.mark.parametrize(
    ("text", "name", "bucket"),
    [
        ("Naive DDP", "naive", ""), ("flat", "flat", ""), ("DDP overlap (individual)", "overlap_param", ""),
        ("Overlap bucketed 100MB", "overlap_bucket", "100"), ("no communication", "none", ""),
        ("PyTorch DDP", "ddp", ""), ("ZeRO-1", "zero1", ""), ("something new", "something new", ""),
        ("none again", "none again", ""),
    ],
)  # fmt: skip
def test_strategies_in_other_words(text, name, bucket):
    assert customary_tables._strategy(text) == (name, bucket)
