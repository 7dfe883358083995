"""Step time of the reference MLP compared with its peers, alternating between the two in one run.

  step_time.py TRAINCTL [--rounds N]

Prints, for one rank at several batch sizes, trainctl, PyTorch eager with the same number of threads, and the
ratio; then 8 ranks of data parallel against PyTorch DDP over Gloo; then the time of `trainctl plan`.
Every figure is the median over the rounds of each round's median step, with the lowest and highest round.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile, time

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
sys.path.append(str(root / "tests/jobs"))
from jobs import job_file


def trainctl_step_us(binary, batch, ranks, steps, threads):
    """Median step time in the run's metrics, the first fifth left out."""
    overrides = [f"dataset.batch={batch}", f"launch.ranks={ranks}", "train.epochs=1", f"train.steps={steps}",
                 "train.log_every=1", f"parallel.mode={'stand_alone' if ranks == 1 else 'data_parallel'}"]
    with tempfile.TemporaryDirectory() as scratch:
        job = job_file("bench_mlp")
        run = subprocess.run([binary, "run", str(job), *overrides, f"launch.log_dir={scratch}/logs"], capture_output=True,
                             text=True, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
        if run.returncode != 0:
            sys.exit(f"trainctl run failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        lines = [json.loads(line) for line in open(f"{scratch}/logs/1/metrics.jsonl")]
    times = [line["seconds"] for line in lines if "step" in line and "seconds" in line]
    return statistics.median(times[len(times) // 5:]) * 1e6


def torch_step_us(python, batch, ranks, steps, threads):
    command = [python, str(here / "mlp_torch.py"), str(batch), str(threads), str(steps)]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the PyTorch peer failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["us"]


def row(label, ours, theirs):
    spread = lambda v: f"{statistics.median(v):10.0f} us [{min(v):.0f} .. {max(v):.0f}]"
    print(f"{label:34s} {spread(ours):36s} {spread(theirs):36s} {statistics.median(theirs) / statistics.median(ours):5.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    a = parser.parse_args()
    python = next((str(p) for p in [root / "build/peers/bin/python3"] if p.exists()), sys.executable)
    print(f"{'':34s} {'trainctl':36s} {'PyTorch':36s} ratio")
    for batch in (4, 32, 256):
        ours, theirs = [], []
        for _ in range(a.rounds):
            ours.append(trainctl_step_us(a.binary, batch, 1, a.steps, 1))
            theirs.append(torch_step_us(python, batch, 1, a.steps, 1))
        row(f"1 rank, 1 thread, batch {batch}", ours, theirs)
    ours, theirs = [], []
    for _ in range(a.rounds):
        ours.append(trainctl_step_us(a.binary, 64, 8, a.steps, 1))
        theirs.append(torch_step_us(python, 64, 8, max(20, a.steps // 5), 1))
    row("8 ranks data parallel, batch 64", ours, theirs)
    times = []
    for _ in range(4 * a.rounds):
        begin = time.perf_counter()
        subprocess.run([a.binary, "plan", str(root / "configs/mnist_mlp.yaml")], check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - begin) * 1e3)
    print(f"trainctl plan configs/mnist_mlp.yaml: {statistics.median(times):.1f} ms [{min(times):.1f} .. {max(times):.1f}]")


main()
