"""tables.py TRAINCTL [--python PYTHON] [--rounds N] [--equal ROWS]: an embedding table on parameter servers compared with PyTorch's sparse embedding, in turn.

Wide and deep on made-up clicks (configs/wide_deep_ps.yaml), 8 ids by Zipf's law, rows of 64, batch 1,024 in all, adam. trainctl: --servers
servers and --workers workers, a table of --rows and one of --peer-rows; PyTorch: nn.Embedding(sparse=True) of --peer-rows with SparseAdam, as many threads as
this machine has cores. Prints samples/s, the median over the rounds with the lowest and the highest, and memory: of PyTorch's process,
and of all of trainctl's together (private); and the rows that each server holds and was asked for: Zipf's hot rows are spread.

--equal ROWS: the losses of --workers workers in step (parallel.sync: true, staleness 0), plain SGD, next to those of one rank that has the
whole table of this many rows."""
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
    """The private memory of a process and its descendants."""
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
                "validation=null", f"launch.ranks={a.workers}", f"parallel.servers={a.servers}", "launch.timeout=60", f"launch.log_dir={folder}"]
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
        lines = [line for server in range(a.servers) for line in open(f"{folder}/1/server.{server}/stdout") if line.startswith("table.deep")]
    return sum(rates["samples_per_second"]), most[0], lines


def losses_in_step(a, rows, overrides):
    with tempfile.TemporaryDirectory() as folder:
        sets = [f"dataset.vocab={rows}", f"network[0].vocab={rows}", f"network[2].vocab={rows}", f"network[2].units={UNITS}", f"dataset.ids={IDS}",
                f"dataset.zipf={a.zipf}", f"dataset.batch={BATCH}", f"dataset.samples={BATCH * 8}", "train={steps: 8, log_every: 1}",
                "validation=null", "optimizer={type: sgd, learning_rate: 0.1}", "launch.timeout=200", f"launch.log_dir={folder}"]
        run = subprocess.run([a.trainctl, "run", str(ROOT / "configs/wide_deep_ps.yaml"), *sets, *overrides], capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stdout + run.stderr)
        return [row["loss"] for row in map(json.loads, open(f"{folder}/1/metrics.jsonl")) if "step" in row and "loss" in row]


def equal(a):
    served = losses_in_step(a, a.equal, [f"launch.ranks={a.workers}", f"parallel.servers={a.servers}", "parallel.sync=true", "parallel.staleness=0"])
    whole = losses_in_step(a, a.equal, ["launch.ranks=1", "parallel={mode: stand_alone}"])
    off = max(abs(x / y - 1) for x, y in zip(served, whole))
    print(f"{a.equal:,} rows: {len(served)} losses of {a.workers} workers and {a.servers} servers are within {off:.1e} of one rank's with the whole table", flush=True)
    if len(served) != len(whole) or off > 1e-5:
        sys.exit("other losses than one rank's")


def torch(a, rows):
    out = subprocess.run([a.python, "-c", PEER, *map(str, (rows, a.steps, a.threads, IDS, UNITS, NUMBERS, BATCH, a.zipf))],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr[-2000:])
    report = json.loads(out.stdout)
    return report["rate"], report["memory"], []


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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--equal", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of PyTorch")
    parser.add_argument("--kinds", default="012", help="which of the three rows")
    a = parser.parse_args()
    if a.equal:
        return equal(a)
    kinds = {f"trainctl, {a.rows:,} rows": (trainctl, a.rows), f"trainctl, {a.peer_rows:,} rows": (trainctl, a.peer_rows),
             f"PyTorch, sparse, {a.peer_rows:,} rows": (torch, a.peer_rows)}
    kinds = {kind: of for number, (kind, of) in enumerate(kinds.items()) if str(number) in a.kinds}
    seen = {kind: [] for kind in kinds}
    for _ in range(a.rounds):
        for kind, (run, rows) in kinds.items():
            seen[kind].append(run(a, rows))
    for kind, rows in seen.items():
        rates, memory, lines = zip(*rows)
        print(f"{kind:40s} {statistics.median(rates):10,.0f} samples/s [{min(rates):,.0f} .. {max(rates):,.0f}]  {max(memory) / 2**20:10,.0f} MiB", flush=True)
        print("".join(f"    server {i}: {line}" for i, line in enumerate(lines[-1])), end="", flush=True)


main()
