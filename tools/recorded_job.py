"""Two gloo ranks train a small model for a few steps; torch records them in three formats, one file a rank.

The files are written into the folder that is named, or here.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, STEPS = 2, 3


def work(rank: int, place: str) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    dist.init_process_group("gloo", store=dist.FileStore(place, RANKS), rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        works = [dist.all_reduce(one.grad, async_op=True) for one in model.parameters()]
        for one in works:
            one.wait()
        optimizer.step()

    observer = torch.profiler.ExecutionTraceObserver().register_callback(f"et_rank{rank}.json")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities,
        record_shapes=True,
        execution_trace_observer=observer,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS),
        on_trace_ready=lambda done: done.export_chrome_trace(f"kineto_rank{rank}.json"),
    ) as profile:
        for _ in range(1 + STEPS):
            step()
            profile.step()
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    # The ring has the step before the recording, too.
    dump["entries"] = dump["entries"][-len(list(model.parameters())) * STEPS :]
    Path(f"fr_rank{rank}.json").write_text(json.dumps(dump))
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        os.chdir(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/rendezvous",), RANKS)
