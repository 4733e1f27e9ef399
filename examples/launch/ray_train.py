"""CollBench in a Ray Train job, ranks: 16. Start it with: python FILE

CollBench must be installed on all hosts, and this folder be at the same path. Results are in results/ on the host of
rank 0.
"""

import secrets
from os import chdir, environ
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ARGUMENTS = ["run", "nccl"]


def measure(settings: dict[str, str]) -> None:
    """Take part in the run as one rank: all Ray workers together are one run."""
    chdir(settings["folder"])
    environ.setdefault("COLLBENCH_SECRET", settings["secret"])
    from collbench.cli import call

    status = call(ARGUMENTS)
    if status:
        raise RuntimeError(f"collbench ended with status {status}")


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers=16, use_gpu=True)
    settings = {"folder": str(Path.cwd()), "secret": secrets.token_hex(32)}
    TorchTrainer(measure, train_loop_config=settings, scaling_config=scaling).fit()
