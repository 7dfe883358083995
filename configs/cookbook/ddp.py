"""Data-parallel training in PyTorch, written for torchrun: trainctl sets the same variables."""
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=20)
steps = options.parse_args().steps

dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(2 + dist.get_rank())
for step in range(1, steps + 1):
    x = torch.randn(32, 8)
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
