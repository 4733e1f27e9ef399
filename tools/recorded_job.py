"""Train a model of CollBench under DDP on gloo ranks; torch records the steps in three formats, one file per rank.

    python tools/recorded_job.py FOLDER [--ranks 8] [--model micro] [--late RANK]

The files are written into the folder. With --late, a rank begins each backward pass 100 ms late; several take turns.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer

from collbench.packages.training.catalog.presets import PRESETS
from collbench.packages.training.rank.models import Transformer

Model = Literal[tuple(PRESETS)]
# DDP builds its buckets in the first two steps.
UNRECORDED, STEPS = 3, 10
BATCH, CONTEXT = 2, 16
LATE_S = 0.1


def record(folder: Path, ranks: int = 8, model: Model = "micro", late: list[int] | None = None) -> None:
    """Run one job in forked ranks, which do not load torch again, and write its files into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        given = (f"{place}/rendezvous", folder, ranks, model, late)
        mp.start_processes(train, given, ranks, start_method="fork")


def train(rank: int, place: str, folder: Path, ranks: int, model: str, late: list[int] | None) -> None:
    os.chdir(folder)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(place, ranks), rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    preset = PRESETS[model]
    module = torch.nn.parallel.DistributedDataParallel(Transformer(preset))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    def step(number: int) -> None:
        optimizer.zero_grad()
        tokens = torch.randint(preset.vocabulary, (BATCH, CONTEXT + 1))
        loss = module(tokens[:, :-1], tokens[:, 1:])
        if late and rank == late[number % len(late)]:
            time.sleep(LATE_S)
        loss.backward()
        optimizer.step()

    def entries() -> dict[str, Any]:
        return json.loads(torch._C._distributed_c10d._dump_fr_trace_json())

    observer = torch.profiler.ExecutionTraceObserver().register_callback(f"et_rank{rank}.json")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        execution_trace_observer=observer,
        schedule=torch.profiler.schedule(wait=UNRECORDED - 1, warmup=1, active=STEPS),
        on_trace_ready=lambda profile: profile.export_chrome_trace(f"kineto_rank{rank}.json"),
    ) as profile:
        for number in range(UNRECORDED + STEPS):
            if number == UNRECORDED:
                before = len(entries()["entries"])
            step(number)
            profile.step()
    dump = entries()
    dump["entries"] = dump["entries"][before:]
    Path(f"fr_rank{rank}.json").write_text(json.dumps(dump))
    dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(record)
