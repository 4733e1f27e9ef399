"""Build the stand-ins into an environment with a CUDA build of torch: `python -m proof.virtual_gpu.build .venv-cuda`.

Three libraries, below `lib/virtual_gpu/` of the environment: the CUDA runtime and NCCL (preloaded), the driver and NVML
(found by their names). A symbol that torch needs and no library has gets a function that prints its name and ends the
process. A .pth file lets every process of the environment override torch's operations when a rule is set.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("timeline.cpp", "runtime.cpp", "nccl.cpp")
NAMES = re.compile(r" U ((?:__cuda|cuda|nccl)\w+)")
DEFINED = re.compile(r" [TW] (\w+)")
COMPILE = ("g++", "-std=c++17", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC")


def symbols(library: Path, pattern: re.Pattern[str]) -> set[str]:
    """Return the names of a library's symbols that match the pattern."""
    listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    return set(pattern.findall(listed))


def build(environment: Path) -> Path:
    """Build all libraries and return their folder. Raises CalledProcessError if the compiler refuses."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    folder = environment / "lib" / "virtual_gpu"
    folder.mkdir(exist_ok=True)
    headers = [f"-I{packages}/nvidia/cu13/include", f"-I{packages}/nvidia/nccl/include", f"-I{HERE}"]
    runtime = folder / "libvirtual_gpu.so"

    def compile_runtime(*sources: Path) -> None:
        subprocess.run([*COMPILE, *headers, "-o", runtime, *sources, "-lpthread", "-lrt"], check=True)

    sources = [HERE / name for name in SOURCES]
    compile_runtime(*sources)
    wanted = set[str]().union(*(symbols(path, NAMES) for path in (packages / "torch/lib").glob("lib*.so")))
    missing = folder / "missing.cpp"
    missing.write_text(missing_functions(sorted(wanted - symbols(runtime, DEFINED))))
    compile_runtime(*sources, missing)
    for name, source in (("libcuda.so.1", "driver.cpp"), ("libnvidia-ml.so.1", "nvml.cpp")):
        subprocess.run([*COMPILE, f"-Wl,-soname,{name}", "-o", folder / name, HERE / source, "-ldl"], check=True)
    hook = packages / "virtual_gpu"
    hook.mkdir(exist_ok=True)
    (hook / "__init__.py").touch()
    for module in ("aten.py", "hook.py"):
        shutil.copy(HERE / module, hook)
    (packages / "virtual_gpu.pth").write_text("import virtual_gpu.hook\n")
    return folder


def missing_functions(names: list[str]) -> str:
    """Return C++ code of functions that print their name and end the process."""
    lines = [
        "#include <cstdio>",
        "#include <cstdlib>",
        "static void missing(const char* name) {",
        '    fprintf(stderr, "virtual GPU: %s is not stood in for\\n", name);',
        "    abort();",
        "}",
        *(f'extern "C" void {name}() {{ missing("{name}"); }}' for name in names),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
