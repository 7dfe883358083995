"""A data-parallel script written for torchrun, without any knowledge of trainctl."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
assert int(os.environ["LOCAL_RANK"]) == rank and int(os.environ["LOCAL_WORLD_SIZE"]) == world

torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.Generator().manual_seed(11)
for step in range(5):
    if os.environ.get("FAIL") == str(rank) and step == 3:
        raise RuntimeError("out of luck")
    x = torch.randn(8 * world, 8, generator=data)
    mine = x[rank::world]
    loss = (model(mine) - mine.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step}: loss {total.item() / world:.6f}", flush=True)
checksum = sum(p.detach().double().sum() for p in model.parameters())
if rank == 0:
    print(f"checksum {checksum.item():.9f}", flush=True)
dist.barrier()
dist.destroy_process_group()
