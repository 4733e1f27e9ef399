"""The verb `doctor`: print what this machine can measure."""

from bench.cli.screen import show_hanging
from bench.launch import doctor as examination
from bench.launch.doctor import DoctorFinding
from bench.machine import host
from bench.model.errors import UnmeasurableError

SIGNS = {"ok": "ok  ", "note": "note", "missing": "NO  "}


def doctor() -> int:
    """It ends with a trial: two ranks join and sum a tensor. Exit code 1 if that fails, 3 if gloo cannot be used."""
    machine = host.machine()
    for finding in examination.examine(machine):
        _print(finding)
    if "gloo" in machine.backends_missing:
        return UnmeasurableError.exit_code
    trial = examination.trial()
    _print(trial)
    return 0 if trial.level == "ok" else 1


def _print(finding: DoctorFinding) -> None:
    remedy = f" → {finding.remedy}" if finding.remedy else ""
    show_hanging(f"{SIGNS[finding.level]}  {finding.subject:<14} ", f"{finding.text}{remedy}")
