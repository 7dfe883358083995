"""The PyTorch peer of configs/mnist_mlp.yaml: 784-512-512-1, MAE, SGD 0.01, data in memory, on the CPU.

  mlp_torch.py BATCH THREADS STEPS            one process, eager
  mlp_torch.py BATCH THREADS STEPS --ranks N  N processes, DistributedDataParallel over Gloo, BATCH global
Prints one JSON line: the median step time of rank 0 in microseconds, with the quartiles.
"""
import argparse, json, os, socket, time
import torch, torch.distributed as dist, torch.multiprocessing as mp


def train(batch, threads, steps, rank=0, ranks=1):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512),
                              torch.nn.ReLU(), torch.nn.Linear(512, 1))
    if ranks > 1:
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=True)
    loss_of, local = torch.nn.L1Loss(), batch // ranks
    images, labels = torch.randn(4096, 1, 28, 28), torch.randint(0, 10, (4096, 1)).float()
    times = []
    for step in range(steps + steps // 5 + 5):
        at = (step * local) % (4096 - local)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net(images[at:at + local]), labels[at:at + local])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    times = sorted(times[-steps:])
    return {"us": times[len(times) // 2] * 1e6, "q1": times[len(times) // 4] * 1e6, "q3": times[3 * len(times) // 4] * 1e6}


def worker(rank, ranks, port, batch, threads, steps):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    result = train(batch, threads, steps, rank, ranks)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("batch", "threads", "steps"):
        parser.add_argument(name, type=int)
    parser.add_argument("--ranks", type=int, default=1)
    a = parser.parse_args()
    if a.ranks == 1:
        print(json.dumps(train(a.batch, a.threads, a.steps)))
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        mp.spawn(worker, (a.ranks, port, a.batch, a.threads, a.steps), nprocs=a.ranks)
