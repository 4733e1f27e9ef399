"""CollBench with 16 ranks in a Ray Train job: python ray_train.py, in the folder of CollBench.

That folder must be at the same place on all hosts; results are in results/ on the host of rank 0.
"""

import os
import sys
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ARGUMENTS = ["run", "configs/nccl.yaml", "--set", "world_sizes=[2, 8, 16]"]


def measure(settings: dict[str, str]) -> None:
    """What each Ray worker does: all of them together are one run."""
    os.chdir(settings["folder"])
    sys.path.insert(0, settings["folder"])
    import run_bench

    status = run_bench.main(ARGUMENTS)
    if status:
        raise RuntimeError(f"run_bench.py ended with status {status}")


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers=16, use_gpu=True)
    TorchTrainer(measure, train_loop_config={"folder": str(Path.cwd())}, scaling_config=scaling).fit()
