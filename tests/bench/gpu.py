"""Compares the speed of trainctl with that of PyTorch on the GPUs of this machine, in one run.

  gpu.py TRAINCTL [--ranks N] [--rounds R]

  step        the reference MLP in fp32, data on the GPU, against PyTorch's captured CUDA graph of the same step
  scaling     eight layers of 8192 in bf16, batch 8192 per GPU, on 1, 2, 4 … N GPUs, with whole optimizers and with shards
              of them, gradients in fp32 and in bf16, against PyTorch's FSDP, with the rate of a large matrix product for scale
  all_reduce  256 MiB of f32, against PyTorch's NCCL
  start-up    from the command to the first finished step, and to the end of a one-step run, against torchrun and its
              hello world; then where the time went, of each rank of the last round
Medians over rounds, lowest and highest in brackets. Needs PyTorch with CUDA.
"""
import argparse, concurrent.futures, json, os, pathlib, re, statistics, subprocess, sys, tempfile, time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "jobs"))
from jobs import job_file

GRAPH = """
import statistics, sys, time, torch
batch, net = int(sys.argv[1]), torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
    torch.nn.Linear(512, 1)).cuda()
optimizer, loss_of = torch.optim.SGD(net.parameters(), lr=0.01, fused=True), torch.nn.L1Loss()
images, labels = torch.randn(4096, 1, 28, 28, device="cuda"), torch.randint(0, 10, (4096, 1), device="cuda").float()
x, y = images[:batch].clone(), labels[:batch].clone()
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(net(x), y)
    loss.backward()
    optimizer.step()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): step()
def run(steps):
    for i in range(steps):
        at = i * batch % (4096 - batch)
        x.copy_(images[at:at + batch]); y.copy_(labels[at:at + batch]); graph.replay()
    torch.cuda.synchronize()
run(200)
start = time.perf_counter()
run(2000)
print((time.perf_counter() - start) / 2000 * 1e6)
"""
HELLO = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
one = torch.ones(1, device="cuda")
dist.all_reduce(one)
print("hello", int(one.item()))
dist.destroy_process_group()
"""
# Weights and gradients in bf16, f32 masters, sharded gradients and optimizer, weights kept from forward to backward.
SCALING = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(1)
layers = [m for i in range(8) for m in (torch.nn.Linear(8192, 8192), torch.nn.ReLU(inplace=True))][:-1]
net = torch.nn.Sequential(*layers).cuda()
for m in net:
    if isinstance(m, torch.nn.Linear): torch.nn.init.normal_(m.weight, std=0.01)
kept = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, sys.argv[1])),
            reshard_after_forward=False)
for m in net:
    if isinstance(m, torch.nn.Linear): fully_shard(m, **kept)
fully_shard(net, **kept)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16), torch.randint(0, 8192, (8192,), device="cuda")
def run(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    dist.barrier()
run(30)
start = time.perf_counter()
run(90)
if dist.get_rank() == 0: print("ms", (time.perf_counter() - start) / 90 * 1e3)
dist.destroy_process_group()
"""
REDUCE = """
import os, statistics, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
values, times = torch.randn(64 << 20, device="cuda"), []
for i in range(30):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(); begin.record(); dist.all_reduce(values); end.record(); torch.cuda.synchronize()
    times.append(begin.elapsed_time(end))
if dist.get_rank() == 0: print("ms", statistics.median(times[10:]))
dist.destroy_process_group()
"""


def sh(*command, **environment):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def torchrun(ranks, program, *arguments):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program)
        script.flush()
        return sh("torchrun", "--nproc-per-node", ranks, script.name, *arguments)


def ms_of(text):
    return float(re.search(r"ms ([\d.]+)", text).group(1))


def train(binary, job, *overrides, **environment):
    """Mean step in us, the first quarter left out."""
    with tempfile.TemporaryDirectory() as logs:
        sh(binary, "run", job_file(job), "launch.device=cuda", f"launch.log_dir={logs}/l", *overrides, **environment)
        rows = [json.loads(line) for line in open(f"{logs}/l/1/metrics.jsonl")]
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    return statistics.mean(seconds[len(seconds) // 4:]) * 1e6


def layers_of_8192(binary, ranks, level, gradients, **environment):
    """Milliseconds per step."""
    mode = "data_parallel" if ranks > 1 else "stand_alone"
    return train(binary, "mlp_8192", f"launch.ranks={ranks}", f"dataset.batch={8192 * ranks}", f"parallel.mode={mode}",
                 f"parallel.optimizer_shard={level}", f"gradient_precision={gradients}", "train.epochs=60", **environment) / 1e3


def scale(a, rounds, flops):
    """Weak scaling, against one GPU. Cards differ, and a step waits for the slowest: so also against that one alone."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(a.ranks)))).split(",")[:a.ranks]
    for gradients, theirs in (("fp32", "float32"), ("bf16", "bfloat16")):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            alone = [statistics.median(of_card) for of_card in zip(*(
                list(pool.map(lambda card: layers_of_8192(a.trainctl, 1, 0, gradients, CUDA_VISIBLE_DEVICES=card), cards))
                for _ in rounds))]
        print(f"8 x 8192, gradients in {gradients}, each card alone: {' '.join(f'{ms:.2f}' for ms in alone)} ms", flush=True)
        one = their_one = None
        for ranks in (1, 2, 4, 8):
            if ranks > a.ranks:
                break
            peer = [ms_of(torchrun(ranks, SCALING, theirs)) for _ in rounds]
            their_one = their_one or statistics.median(peer)
            print(f"  {ranks} GPUs, PyTorch's FSDP: {spread(peer, 'ms', 2)}, {their_one / statistics.median(peer) * 100:.1f}% of weak scaling",
                  flush=True)
            for level in (0, 2) if ranks > 1 else (0,):
                ours = [layers_of_8192(a.trainctl, ranks, level, gradients) for _ in rounds]
                ms = statistics.median(ours)
                one = one or ms
                print(f"  {ranks} GPUs, optimizer_shard {level}: {spread(ours, 'ms', 2)}, {flops / ms / 1e9:.0f} TFLOP/s per GPU, "
                      f"{one / ms * 100:.1f}% of weak scaling, {max(alone[:ranks]) / ms * 100:.1f}% of the slowest card alone, "
                      f"{statistics.median(peer) / ms:.2f}x PyTorch", flush=True)


def one_step(binary, ranks):
    """Seconds to the end of the run, and the start_up.json of each rank."""
    with tempfile.TemporaryDirectory() as logs:
        start = time.monotonic()
        sh(binary, "run", job_file("bench_mlp"), "launch.device=cuda", f"launch.ranks={ranks}", "train.steps=1",
           f"parallel.mode={'data_parallel' if ranks > 1 else 'stand_alone'}", f"launch.log_dir={logs}/l")
        seconds = time.monotonic() - start
        return seconds, [json.load(open(f"{logs}/l/1/rank.{rank}/start_up.json")) for rank in range(ranks)]


def spread(values, unit, digits=1):
    return f"{statistics.median(values):.{digits}f} {unit} [{min(values):.{digits}f} .. {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    rounds = range(a.rounds)
    for batch in (32, 256):
        ours = [train(a.trainctl, "bench_mlp", f"dataset.batch={batch}", "train.epochs=100", "train.sink_steps=64") for _ in rounds]
        theirs = [float(sh(sys.executable, "-c", GRAPH, batch)) for _ in rounds]
        print(f"step, batch {batch}: {spread(ours, 'us')}; PyTorch's graph {spread(theirs, 'us')}; "
              f"{statistics.median(theirs) / statistics.median(ours):.2f}x", flush=True)

    shape = "8192x8192,8192x8192"
    peak = json.loads(sh(a.trainctl, "bench", "op", "matmul", "--shape", shape, "--dtype", "bf16", "--device", "cuda", "--json"))
    print("matrix product 8192^3 in bf16:", json.dumps(peak)[:400], flush=True)
    flops = (3 * 8 - 1) * 2 * 8192**3  # a step's products: all but the slope of the data
    scale(a, rounds, flops)
    if a.ranks > 1:
        table = sh(a.trainctl, "bench", "collective", "all_reduce", "--ranks", a.ranks, "--bytes", "256M", "--device", "cuda")
        print(table.strip(), flush=True)
        ms = ms_of(torchrun(a.ranks, REDUCE))
        print(f"PyTorch's NCCL: {256 * 2**20 / ms / 1e6 * 2 * (a.ranks - 1) / a.ranks:.1f} bus GB/s", flush=True)
    first, ours, theirs = [], [], []
    for _ in rounds:
        seconds, phases = one_step(a.trainctl, a.ranks)
        ours.append(seconds)
        first.append(max(rank["seconds"] for rank in phases))
        start = time.monotonic()
        torchrun(a.ranks, HELLO)
        theirs.append(time.monotonic() - start)
    print(f"first step, {a.ranks} GPUs: {spread(first, 's')}; start to end {spread(ours, 's')}; torchrun's hello world "
          f"{spread(theirs, 's')}", flush=True)
    for rank, start in enumerate(phases):
        print(f"  rank {rank}: {json.dumps(start)}", flush=True)


if __name__ == "__main__":
    main()
