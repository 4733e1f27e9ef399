"""A training script or a configuration of the gradient benchmark → the traps it runs into. Runs and imports nothing.

In: a path and what is in it. Out: hits by line, or a ConfigError of one line. A line that ends with
`# noqa: G101` is let pass: some traps are what somebody wants to measure.
"""

import re
from pathlib import Path

from bench import strict
from bench.analyze.gradients import config_rules, script, script_rules
from bench.errors import ConfigError
from bench.gradients.traps import Hit

SCRIPTS = (".py", ".pyw")
CONFIGS = (".yaml", ".yml")
# The longest module of torch is a tenth of it; a parsed file takes a hundred times its length in memory.
LIMIT_BYTES = 4 * 2**20


def lint(path: Path, cores: int) -> list[Hit]:
    """What one file runs into; cores: of the machine that a configuration is for."""
    if path.suffix.lower() not in (*SCRIPTS, *CONFIGS):
        raise ConfigError(f"{path}: neither Python ({SCRIPTS[0]}) nor a configuration ({', '.join(CONFIGS)})")
    raw = _read(path)
    try:
        found = _script(raw, str(path)) if path.suffix.lower() in SCRIPTS else _config(raw, str(path), cores)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    # As Python counts lines: form feeds and the like do not end one.
    lines = re.split(r"\r\n|\r|\n", raw.decode("utf-8", errors="replace"))
    return [hit for hit in found if not _let_pass(lines[hit.line - 1] if hit.line <= len(lines) else "", hit.code)]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path!s:.200}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > LIMIT_BYTES:
        raise ConfigError(f"{path}: larger than {LIMIT_BYTES // 2**20} MiB")
    if not raw.strip():
        raise ConfigError(f"{path}: empty")
    return raw


def _script(raw: bytes, source: str) -> list[Hit]:
    return script_rules.hits(script.read(raw, source))


def _config(raw: bytes, source: str, cores: int) -> list[Hit]:
    data = strict.mapping(raw, source, "strategies: [flat, ddp]")
    if "strategies" not in data:
        raise ConfigError(f"{source}: no key 'strategies': not a configuration of the gradient benchmark")
    settings = config_rules.Settings(data, config_rules.strategies(data["strategies"]), cores)
    return config_rules.hits(settings, raw.decode("utf-8"))


def _let_pass(line: str, code: str) -> bool:
    _, found, codes = line.partition("# noqa:")
    return bool(found) and code in re.split(r"[\s,]+", codes)
