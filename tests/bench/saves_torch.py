"""The PyTorch peer of saves.py: trains, saves once after half of the steps, and prints one JSON line.

  saves_torch.py mlp|gpt --save no|torch|async --folder DIR [--device cuda] [--steps N] [--threads N] [--d D] [--layers L] …

torch: torch.save of weights and optimizer between two steps. async: torch.distributed.checkpoint.async_save of them.
The line has the seconds of every step, the save's included, and the seconds until the save was on disk.
"""
import argparse, contextlib, json, time

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.nn import functional as F

from networks_torch import Gpt


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["mlp", "gpt"])
    parser.add_argument("--save", choices=["no", "torch", "async"], required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    for size in ("d", "layers", "heads", "length", "vocab"):
        parser.add_argument(f"--{size}", type=int, default=0)
    return parser.parse_args()


def network_and_batch(a):
    if a.network == "mlp":
        layers = [part for _ in range(a.layers) for part in (nn.Linear(a.d, a.d), nn.ReLU())]
        return nn.Sequential(*layers[:-1]), torch.randn(a.batch, a.d), torch.randint(a.d, (a.batch,))
    ids = torch.randint(a.vocab, (a.batch, a.length))
    return Gpt(a), ids, ids.roll(-1, 1)


def main():
    a = parse_arguments()
    torch.set_num_threads(a.threads)
    cuda = a.device == "cuda"
    if a.save == "async":
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    network, x, y = network_and_batch(a)
    network, x, y = network.to(a.device), x.to(a.device), y.to(a.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(network) if cuda else network
    seconds, saving, saved = [], None, None
    start = time.perf_counter()
    for step in range(a.steps):
        with torch.autocast("cuda", torch.bfloat16) if cuda else contextlib.nullcontext():
            loss = F.cross_entropy(forward(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        if step == a.steps // 2 and a.save != "no":
            began = time.perf_counter()
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            if a.save == "torch":
                torch.save(state, f"{a.folder}/state.pt")
                saved = time.perf_counter() - began
            else:
                saving = checkpoint.async_save(state, checkpoint_id=f"{a.folder}/state")
                saving.add_done_callback(lambda _: times.append(time.perf_counter()))
                times = []
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    if saving:
        saving.result()
        saved = times[0] - began
    print(json.dumps({"seconds": seconds, "saved": saved}))


if __name__ == "__main__":
    main()
