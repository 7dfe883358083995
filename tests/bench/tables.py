"""tables.py TRAINCTL [--python PYTHON] [--rounds N]: an embedding table on parameter servers beside PyTorch's sparse embedding, in turn.

Wide and deep on made-up clicks (configs/wide_deep_ps.yaml), 8 ids by Zipf's law, rows of 64, batch 1,024 in all, adam. trainctl: 2
servers and 2 workers, a table of --rows and one of --peer-rows; PyTorch: nn.Embedding(sparse=True) of --peer-rows with SparseAdam, as many threads as
this machine has cores. Prints samples/s, the median over the rounds with the lowest and the highest, and memory: of PyTorch's process,
and of all of trainctl's together (private)."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
IDS, UNITS, NUMBERS, BATCH = 8, 64, 4, 1024

PEER = """
import json, resource, sys, time, torch
rows, steps, threads, ids, units, numbers, batch, zipf = (float(w) for w in sys.argv[1:])
rows, steps, ids, units, numbers, batch = (int(x) for x in (rows, steps, ids, units, numbers, batch))
torch.set_num_threads(int(threads)); torch.manual_seed(1)
wide, deep = (torch.nn.Embedding(rows, u, sparse=True) for u in (2, units))
dense = torch.nn.Sequential(torch.nn.Linear(ids * units + numbers, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
sparse_step = torch.optim.SparseAdam([*wide.parameters(), *deep.parameters()], lr=0.005)
dense_step = torch.optim.Adam(dense.parameters(), lr=0.005)
def draw():  # by Zipf's law, as the inverse of its sum for a continuous rank
    u = torch.rand(batch, ids, dtype=torch.float64)
    top = float(rows) ** (1 - zipf)
    return ((1 - u * (1 - top)) ** (1 / (1 - zipf))).long().clamp_(max=rows) - 1, torch.rand(batch, numbers), torch.randint(0, 2, (batch,))
data = [draw() for _ in range(steps)]
begin = 0
for step, (i, x, y) in enumerate(data):
    if step == steps // 4: begin = time.perf_counter()
    sparse_step.zero_grad(); dense_step.zero_grad()
    out = dense(torch.cat([deep(i).flatten(1), x], 1)) + wide(i).sum(1)
    torch.nn.functional.cross_entropy(out, y).backward()
    sparse_step.step(); dense_step.step()
seconds = time.perf_counter() - begin
print(json.dumps({"rate": (steps - steps // 4) * batch / seconds, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))
"""


def private_bytes(pid):
    """Of a process and all below it."""
    total = 0
    try:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith(("Private_Dirty", "Private_Clean")):
                total += int(line.split()[1]) << 10
        for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
            total += private_bytes(child)
    except OSError:
        pass
    return total


def trainctl(a, rows):
    with tempfile.TemporaryDirectory() as folder:
        sets = [f"dataset.vocab={rows}", f"network[0].vocab={rows}", f"network[2].vocab={rows}", f"network[2].units={UNITS}", f"dataset.ids={IDS}",
                f"dataset.zipf={a.zipf}", f"dataset.batch={BATCH}", f"dataset.samples={BATCH * a.steps}", "train={epochs: 1, log_every: 1}",
                "validation=null", "launch.ranks=2", f"launch.log_dir={folder}"]
        run = subprocess.Popen([a.trainctl, "run", str(ROOT / "configs/wide_deep_ps.yaml"), *sets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        most = [0]
        def watch():
            while run.poll() is None:
                most[0] = max(most[0], private_bytes(run.pid))
                time.sleep(0.2)
        thread = threading.Thread(target=watch)
        thread.start()
        out, _ = run.communicate()
        thread.join()
        if run.returncode:
            sys.exit(out)
        rates = next(row for row in map(json.loads, open(f"{folder}/1/metrics.jsonl")) if row.get("kind") == "workers")
    return sum(rates["samples_per_second"]), most[0]


def torch(a, rows):
    out = subprocess.run([a.python, "-c", PEER, *map(str, (rows, a.steps, os.cpu_count(), IDS, UNITS, NUMBERS, BATCH, a.zipf))],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr[-2000:])
    report = json.loads(out.stdout)
    return report["rate"], report["memory"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    ours = ROOT / "build/peers/bin/python3"
    parser.add_argument("--python", default=str(ours) if ours.exists() else sys.executable, help="that has PyTorch")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--peer-rows", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--zipf", type=float, default=1.2)
    a = parser.parse_args()
    kinds = {f"trainctl, {a.rows:,} rows": (trainctl, a.rows), f"trainctl, {a.peer_rows:,} rows": (trainctl, a.peer_rows),
             f"PyTorch, sparse, {a.peer_rows:,} rows": (torch, a.peer_rows)}
    seen = {kind: [] for kind in kinds}
    for _ in range(a.rounds):
        for kind, (run, rows) in kinds.items():
            seen[kind].append(run(a, rows))
    for kind, rows in seen.items():
        rates, memory = zip(*rows)
        print(f"{kind:40s} {statistics.median(rates):10,.0f} samples/s [{min(rates):,.0f} .. {max(rates):,.0f}]  {max(memory) / 2**20:10,.0f} MiB", flush=True)


main()
