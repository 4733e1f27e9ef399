"""A good file gives its values; a bad file gives one line with file, key, value and the allowed values."""

import pytest

from collbench.config.models import load, parse
from collbench.model.errors import ConfigError
from conftest import ROOT

GOOD = "backends: [gloo]\nworld_sizes: [2, 4]\noperations: [all_reduce]\nsizes: {from: 1KiB, to: 64MiB, factor: 4}\n"


def message(extra: str = "", sets=(), base: str = GOOD) -> str:
    with pytest.raises(ConfigError) as error:
        parse((base + extra).encode(), "c.yaml", sets)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_range_of_sizes():
    assert parse(GOOD.encode(), "c").size_list == [2**k for k in range(10, 27, 2)]


def test_sizes_grow_by_a_step_or_by_a_factor():
    steps = parse(GOOD.encode(), "c", ["sizes={from: 1KiB, to: 4KiB, step: 1KiB}"])
    assert steps.size_list == [1024, 2048, 3072, 4096]
    assert "keep only one" in message(sets=["sizes={from: 1KiB, to: 4KiB, step: 1KiB, factor: 2}"])
    assert "use a larger step" in message(sets=["sizes={from: 1KiB, to: 1GiB, step: 1KiB}"])
    assert "use a larger factor" in message(sets=["sizes={from: 1KiB, to: 1GiB, factor: 1.01}"])


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ("sampling: {warmpu: 3}", ["c.yaml:5:12: sampling.warmpu", "did you mean 'warmup'", "allowed: warmup,"]),
        ("sampling: {iterations: 10, relative_error: 0.1}", ["relative_error would be ignored"]),
        ("timeout: 5M", ["timeout", "unknown unit 'M'"]),
        ("link: 25G", ["link", "bits or bytes a second", "25 Gbit/s or 25 GB/s"]),
        ("faults: [{do: explode, rank: 1}]", ["faults[0].do: unknown fault explode", "raise, exit"]),
        ("launches: 3\nlaunches: 4", ['c.yaml:6:1: key "launches" is there twice']),
        ("x: !!python/object/apply:os.system [ls]", ["c.yaml:5:4", "python/object"]),
        ("? [a, b]\n: 3", ["c.yaml:5:3", "plain word"]),
    ],
)
def test_each_mistake_is_one_line_that_says_how_to_fix_it(extra, parts):
    text = message(extra)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("sizes=[1M]", ["--set", "sizes[0]", "1MB", "1MiB"]),
        ("sizes=[1MB, 1MB]", ["listed twice"]),
        ("sizes={from: 2MiB, to: 1MiB}", ["larger than"]),
        ("a.b=3", ["--set a.b=3: a: unknown key"]),
        ("=3", ["key.path=value"]),
        ("launches.b=3", ["--set"]),
    ],
)
def test_overrides_are_checked_like_the_file(override, parts):
    text = message(sets=[override])
    for part in parts:
        assert part in text


def test_a_fault_that_does_nothing_on_gpus_is_refused_for_them():
    slow = "faults=[{do: slow, rank: 0}]"
    assert "faults[0].do: slow keeps a core busy" in message(sets=[slow, "backends=[gloo, nccl]"])
    parse(GOOD.encode(), "c", [slow, "backends=[gloo]"])


def test_an_override_wins_and_may_make_a_section():
    config = parse(GOOD.encode(), "c", ["sampling.iterations=7", "launches=2"])
    assert (config.sampling.iterations, config.launches) == (7, 2)


def test_bombs_and_giants_are_refused_quickly():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    assert "aliases" in message(base=bomb)
    assert "larger than 64 KiB" in message(base="x: " + "y" * 10_000_000)
    assert "nested too deeply" in message(base="x: " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(ConfigError, match="UTF-8"):
        parse(b"\xff\xfe", "c")


def test_missing_files_and_folders_are_one_line(tmp_path):
    for path in (tmp_path / "no.yaml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            load(path)


SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_configurations_are_valid_and_name_their_schema(path):
    config, raw = load(path)
    assert config.name == path.stem
    assert raw.startswith(b"# yaml-language-server: $schema=schema.json")
