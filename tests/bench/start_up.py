#!/usr/bin/env python3
"""Time until ranks start to train: trainctl compared with torchrun.

  python3 tests/bench/start_up.py build/release/bin/trainctl

Prints medians of several runs. "first step" is from the start of the command to the first loss line of rank 0.
torchrun is left out where PyTorch is not installed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HELLO = """import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() == 0:
    print("step: 1,", x.item(), flush=True)
dist.destroy_process_group()
"""


def seconds_of(command, folder, until=None):
    """Seconds to the line with `until`, and to the end."""
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    first, lines = None, []
    for line in process.stdout:
        lines.append(line)
        if first is None and until and until in line:
            first = time.monotonic() - start
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)} failed:\n{''.join(lines[-20:])}")
    return first, time.monotonic() - start


def row(name, command, folder, repeats, until=None):
    results = [seconds_of(command, folder, until) for _ in range(repeats)]
    first = f"{statistics.median(result[0] for result in results):.3f}" if until else "-"
    print(f"{name:<44} {first:>14} {statistics.median(result[1] for result in results):>10.3f}", flush=True)


def has_torch():
    return shutil.which("torchrun") and subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL,
                                                       check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    trainctl = os.path.abspath(options.trainctl)
    job = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/mnist_mlp.yaml")
    folder = tempfile.mkdtemp(prefix="trainctl-start-up-")
    with open(folder + "/hello.py", "w") as file:
        file.write(HELLO)
    with open(folder + "/true.yaml", "w") as file:
        file.write('name: nothing\ncommand: ["true"]\n')
    with open(folder + "/hello.yaml", "w") as file:
        file.write(f"name: hello\ncommand: [{sys.executable}, hello.py]\n")
    n = options.ranks
    print(f"{'':<44} {'first step, s':>14} {'all, s':>10}")
    row(f"trainctl run, {n} ranks, mnist_mlp, 1 step", [trainctl, "run", job, "train.steps=1", "train.checkpoint=null", f"launch.log_dir={folder}/logs"],
        folder, options.repeats, "step: 1,")
    row("trainctl run, 1 rank of true", [trainctl, "run", "true.yaml"], folder, options.repeats)
    row("trainctl run, 256 ranks of true", [trainctl, "run", "true.yaml", "launch.ranks=256"], folder, options.repeats)
    if has_torch():
        row(f"trainctl run, {n} ranks, PyTorch's hello world", [trainctl, "run", "hello.yaml", f"launch.ranks={n}"], folder, 3, "step: 1,")
        row(f"torchrun, {n} ranks, PyTorch's hello world", ["torchrun", f"--nproc-per-node={n}", "hello.py"], folder, 3, "step: 1,")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
