"""CollBench with 16 ranks in a Ray Train job: python ray_train.py, in the folder of CollBench.

That folder must be at the same place on all hosts; results are in results/ on the host of rank 0.
"""

import secrets
import sys
from os import chdir, environ
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ARGUMENTS = ["run", "configs/nccl.yaml"]


def measure(settings: dict[str, str]) -> None:
    """What each Ray worker does: all of them together are one run."""
    chdir(settings["folder"])
    environ.setdefault("COLLBENCH_SECRET", settings["secret"])
    sys.path.insert(0, settings["folder"])
    import run_bench

    status = run_bench.main(ARGUMENTS)
    if status:
        raise RuntimeError(f"run_bench.py ended with status {status}")


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers=16, use_gpu=True)
    settings = {"folder": str(Path.cwd()), "secret": secrets.token_hex(32)}
    TorchTrainer(measure, train_loop_config=settings, scaling_config=scaling).fit()
