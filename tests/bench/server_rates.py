"""Compares the speed of synchronous parameter servers with data_parallel.

    server_rates.py TRAINCTL [--megabytes 10,100] [--workers 8] [--servers 1,2,4,8] [--device cuda] [--cpu]

Trains dense networks whose weights have the given sizes, in turn with data_parallel and with each number of servers. The first fifth of
the steps of each run is left out. Prints for each the median over the rounds of a round's median step time, with the lowest and the
highest, and the rate that `trainctl plan` predicts from the bytes on equal links. All runs must have the same losses.

--device cuda: the workers are on GPUs, the servers on the host's cores.
--cpu: measures the processor time per step of all processes together instead of the wall-clock time, from runs of n and of 3n steps. It
       does not include waiting, and other work on the machine affects it less.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

# Three square layers; the width follows from the megabytes.
JOB = """
name: rates
dataset: {{type: random, shape: [{width}], classes: 16, batch: {batch}, samples: {samples}}}
network:
  - {{type: dense, units: {width}}}
  - {{type: relu}}
  - {{type: dense, units: {width}}}
  - {{type: relu}}
  - {{type: dense, units: {width}}}
  - {{type: relu}}
  - {{type: dense, units: 16}}
loss: softmax_cross_entropy
optimizer: {{type: adam, learning_rate: 0.0005}}
train: {{steps: {steps}, epochs: 1000, log_every: 1}}
launch: {{ranks: {workers}, device: {device}, timeout: 60}}
"""


def run(a, job, folder, overrides):
    """The median of the seconds of a step, and all losses."""
    logs = tempfile.mkdtemp(dir=folder)
    done = subprocess.run([a.trainctl, "run", job, f"launch.log_dir={logs}", *overrides], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(overrides)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    rows = [row for row in map(json.loads, open(f"{logs}/1/metrics.jsonl")) if "step" in row and "loss" in row]
    return statistics.median(row["seconds"] for row in rows[len(rows) // 5:]), [row["loss"] for row in rows]


def processor_seconds():
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return of_children.ru_utime + of_children.ru_stime


def spent(a, job, folder, overrides):
    """The processor seconds of a step, and all losses."""
    begin = processor_seconds()
    run(a, job, folder, overrides)
    middle = processor_seconds()
    _, losses = run(a, job, folder, [*overrides, f"train.steps={3 * a.steps}"])
    return (processor_seconds() - middle - (middle - begin)) / (2 * a.steps), losses


def predicted(a, job, servers):
    done = subprocess.run([a.trainctl, "plan", job, "--json", "parallel.mode=parameter_server", f"parallel.servers={servers}"],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    rates = json.loads(done.stdout).get("servers_beside_all_reduce", [])  # none for a single worker
    return {row["servers"]: row["rate"] for row in rates}


def compare(a, megabytes, folder):
    width = round((megabytes * 1e6 / 4 / 3) ** 0.5 / 16) * 16
    job = f"{folder}/{megabytes}.yaml"
    pathlib.Path(job).write_text(JOB.format(width=width, batch=a.batch, samples=8 * a.batch, steps=a.steps, workers=a.workers, device=a.device))
    kinds = {"data_parallel": ["parallel.mode=data_parallel"]}
    for servers in a.servers:
        kinds[f"{servers} server{'s' * (servers > 1)}"] = ["parallel.mode=parameter_server", f"parallel.servers={servers}"]
    seconds, losses = {kind: [] for kind in kinds}, {}
    for _ in range(a.rounds):
        for kind, overrides in kinds.items():
            took, losses[kind] = (spent if a.cpu else run)(a, job, folder, overrides)
            seconds[kind].append(took)
    plan = predicted(a, job, a.servers[0])
    print(f"{megabytes} MB: 3 layers of {width}, {a.workers} workers, batch {a.batch}, {os.cpu_count()} cores"
          f"{', processor time of all' if a.cpu else ''}")
    if plan:
        print("  plan says: " + ", ".join(f"{servers} {rate:.2f}x" for servers, rate in plan.items()))
    usual = statistics.median(seconds["data_parallel"])
    for kind, took in seconds.items():
        off = max(abs(x / y - 1) for x, y in zip(losses[kind], losses["data_parallel"]))
        servers = kind.split()[0]
        by_bytes = f"{plan[int(servers)]:.2f}x by bytes" if servers.isdigit() and int(servers) in plan else ""
        middle = statistics.median(took)
        print(f"  {kind:14} {middle * 1e3:8.2f} ms [{min(took) * 1e3:.2f} .. {max(took) * 1e3:.2f}]  {a.batch / middle:9,.0f} samples/{'processor ' if a.cpu else ''}s"
              f"  {usual / middle:5.2f}x of data_parallel  {by_bytes:16} losses within {off:.1e}", flush=True)
        if off > (1e-5 if a.device == "cpu" else 1e-4):
            sys.exit(f"{kind}: different losses than data_parallel")


def main():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--megabytes", type=numbers, default=[10, 100])
    parser.add_argument("--servers", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the workers; servers are on the host's cores")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    a.trainctl = os.path.abspath(a.trainctl)
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in a.megabytes:
            compare(a, megabytes, folder)


main()
