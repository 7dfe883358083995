"""Predicted steps beside measured ones.

  predictions.py TRAINCTL --machine NAME [--device cuda] [--gpus 1] [--rounds N] [--json FILE] [--measured FILE]

NAME is what `trainctl calibrate --name NAME` wrote on this machine, or a machine that comes with the program. Each case
is a job of configs/ or templates/ with fields of its own; cases of one job are plans that compete. Prints for each case
the predicted step with its interval, the median of the measured steps with the lowest and highest round, the error and
the memory; then for each job Kendall's tau of the order (pairs that differ by less than the spread of the rounds do
not count), and over all the mean and largest error and how many intervals hold. A case that needs more ranks than
--gpus is left out; on a CPU more than --ranks.

--measured FILE measures nothing: it predicts again what an earlier --json FILE has measured, and prints the error that
was predicted then beside the one now.
"""
import argparse, itertools, json, os, pathlib, statistics, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parent.parent.parent
alone = ["launch.ranks=1", "parallel.mode=stand_alone"]
mnist = ["parallel.stages=1"]


def gpt(layers, d, batch, *more, heads=None):
    return ("templates/gpt2.yaml", [f"vars.layers={layers}", f"vars.d={d}", f"vars.heads={heads or d // 64}", f"dataset.batch={batch}", *more])


# one rank of a GPU; then of two
CUDA = [
    gpt(12, 768, 16), gpt(12, 768, 8), gpt(6, 768, 16), gpt(12, 768, 16, "parallel.micro_batches=2"), gpt(12, 768, 16, "parallel.recompute=['h.*']"),
    gpt(24, 1024, 8), gpt(24, 1024, 16), gpt(24, 1024, 16, "parallel.micro_batches=4"),
    gpt(8, 1600, 8, heads=25), gpt(4, 512, 32), gpt(12, 768, 4, "precision=fp32"),
    ("templates/llama.yaml", []), ("templates/llama.yaml", ["vars.layers=8", "dataset.batch=8"]), ("templates/llama.yaml", ["parallel.micro_batches=4"]),
    ("templates/llama.yaml", ["vars.d=2048", "vars.hidden=5632", "vars.heads=32", "vars.kv_heads=8", "vars.layers=6", "dataset.batch=8"]),
    ("templates/resnet50.yaml", []), ("templates/resnet50.yaml", ["dataset.batch=64"]), ("templates/resnet50.yaml", ["dataset.batch=128"]),
    ("templates/mlp.yaml", ["dataset.batch=1024"]), ("templates/mlp.yaml", ["dataset.batch=128"]),
    ("configs/lenet.yaml", ["dataset.batch=512"]), ("configs/lenet.yaml", ["dataset.batch=64"]),
]
TWO = [
    *(gpt(12, 768, 16, "launch.ranks=2", f"parallel.mode={mode}", *more) for mode, more in (
        ("data_parallel", []), ("data_parallel", ["parallel.optimizer_shard.level=1"]), ("data_parallel", ["parallel.optimizer_shard.level=3"]),
        ("semi_auto_parallel", ["parallel.stages=2", "parallel.micro_batches=4"]),
        ("semi_auto_parallel", ["parallel.stages=2", "parallel.micro_batches=8"]))),
    *(("templates/llama.yaml", ["launch.ranks=2", "parallel.mode=data_parallel", *more]) for more in ([], ["parallel.optimizer_shard.level=2"])),
    ("templates/resnet50.yaml", ["launch.ranks=2", "parallel.mode=data_parallel"]),
]
CPU = [
    ("configs/mnist_mlp.yaml", [*mnist, *alone]), ("configs/mnist_mlp.yaml", [*mnist, *alone, "dataset.batch=512"]),
    ("configs/mnist_mlp.yaml", [*mnist, "launch.ranks=2", "parallel.mode=data_parallel"]),
    ("configs/mnist_mlp.yaml", [*mnist, "launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=1"]),
    ("configs/mnist_mlp.yaml", [*mnist, "launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=3"]),
    ("configs/mnist_mlp.yaml", [*mnist, "launch.ranks=2", "parallel.stages=2", "parallel.micro_batches=4"]),
    ("configs/mnist_mlp.yaml", [*mnist, "launch.ranks=2", "parallel.stages=2", "parallel.micro_batches=2"]),
    ("configs/lenet.yaml", [*alone]), ("configs/lenet.yaml", [*alone, "dataset.batch=256"]),
    ("configs/lenet.yaml", ["launch.ranks=2", "parallel.mode=data_parallel"]),
    ("configs/lenet.yaml", ["launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=2"]),
    ("configs/gpt_text.yaml", [*alone]), ("configs/gpt_text.yaml", [*alone, "parallel.recompute=['h.*']"]),
    ("configs/gpt_text.yaml", [*alone, "parallel.micro_batches=4"]),
    ("configs/gpt_text.yaml", ["launch.ranks=2", "parallel.mode=data_parallel"]),
    ("configs/gpt_text.yaml", ["launch.ranks=2", "parallel.mode=data_parallel", "parallel.optimizer_shard.level=3"]),
    ("configs/gpt_text.yaml", ["launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=4"]),
    ("templates/mlp.yaml", [*alone]), ("templates/mlp.yaml", [*alone, "dataset.batch=512"]),
    ("templates/mlp.yaml", ["launch.ranks=2", "parallel.mode=data_parallel", "dataset.batch=512"]),
]


def sh(command):
    run = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if run.returncode != 0:
        raise RuntimeError((run.stderr + run.stdout)[-600:])
    return run.stdout


def ranks(sets):
    return max([int(s.split("=")[1]) for s in sets if s.startswith("launch.ranks=")], default=1)


def predict(a, job, sets):
    plan = json.loads(sh([a.trainctl, "plan", str(root / job), "--json", f"launch.device={a.device}", f"launch.machine={a.machine}", *sets]))
    return plan["estimate"], plan["rank_classes"][0]["arena_bytes"]


def measure(a, job, sets, seconds):
    """Seconds of a step, as metrics.jsonl has it, without the first quarter: on a CPU the median, since others run there
    too; on a GPU, which reports steps in bursts, all of them divided by their number."""
    steps = max(24, min(400, int(a.seconds / seconds)))
    more = ["train.sink_steps=4"] if a.device == "cuda" else []
    with tempfile.TemporaryDirectory() as scratch:
        sh([a.trainctl, "run", str(root / job), f"launch.device={a.device}", *sets, f"train.steps={steps}", f"train.log_every={steps}", *more,
            f"launch.log_dir={scratch}/logs"])
        rows = [json.loads(line) for line in open(f"{scratch}/logs/1/metrics.jsonl")]
    times = [row["seconds"] for row in rows if "step" in row and "seconds" in row]
    later = times[len(times) // 4:]
    return statistics.mean(later) if a.device == "cuda" else statistics.median(later)


def tau(cases):
    """Kendall's tau of predicted against measured, and the pairs that count."""
    good = bad = 0
    for one, other in itertools.combinations(cases, 2):
        if one["lowest"] <= other["highest"] and other["lowest"] <= one["highest"]:
            continue
        same = (one["measured"] - other["measured"]) * (one["predicted"] - other["predicted"])
        good, bad = good + (same > 0), bad + (same <= 0)
    return ((good - bad) / (good + bad), good + bad) if good + bad else (1.0, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="the most CPU ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of training a round")
    parser.add_argument("--only", default="", help="cases whose text has this")
    parser.add_argument("--json")
    parser.add_argument("--measured", help="a --json of an earlier run")
    a = parser.parse_args()

    cases = [(job, sets if any(s.startswith("launch.ranks") for s in sets) else [*alone, *sets]) for job, sets in
             ((CUDA + TWO) if a.device == "cuda" else CPU)]
    known = {}
    if a.measured:
        known = {row["case"]: row for row in json.load(open(a.measured))}
        a.gpus = a.ranks = 1 << 20
    cases = [(job, sets) for job, sets in cases if ranks(sets) <= (a.gpus if a.device == "cuda" else a.ranks) and a.only in f"{job} {' '.join(sets)}"]
    rows = []
    print(f"{'predicted':>10s}   {'nine of ten':20s} {'measured':>10s}   {'rounds':20s} {'error':>7s}  case", flush=True)
    for job, sets in cases:
        name = " ".join([pathlib.Path(job).stem, *(s for s in sets if s not in mnist and s not in alone)])
        before = known.get(name)
        if a.measured and not before:
            continue
        try:
            estimate, memory = predict(a, job, sets)
            rounds = [before["lowest"], before["measured"], before["highest"]] if before else [measure(a, job, sets, estimate["seconds"]) for _ in range(a.rounds)]
        except RuntimeError as failure:
            print(f"failed: {name}: {failure}", flush=True)
            continue
        row = {"case": name, "job": job, "predicted": estimate["seconds"], "low": estimate["low"], "high": estimate["high"], "parts": estimate["parts"],
               "measured": statistics.median(rounds), "lowest": min(rounds), "highest": max(rounds), "memory": memory}
        row["error"] = row["predicted"] / row["measured"] - 1
        rows.append(row)
        was = f"(was {before['error'] * 100:+.1f}%)  " if before else ""
        ms = lambda *keys: " .. ".join(f"{row[key] * 1e3:.3f}" for key in keys)
        print(f"{ms('predicted'):>10s}   {ms('low', 'high'):20s} {ms('measured'):>10s}   {ms('lowest', 'highest'):20s} {row['error'] * 100:+6.1f}%  {was}{name}", flush=True)
    if not rows:
        sys.exit("nothing was measured")
    print()
    for job in dict.fromkeys(row["job"] for row in rows):
        print("{:30s} tau {:.2f} of {} pairs".format(job, *tau([row for row in rows if row["job"] == job])))
    errors = [abs(row["error"]) for row in rows]
    held = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
    print(f"{len(rows)} plans: mean error {100 * statistics.mean(errors):.1f} %, largest {100 * max(errors):.1f} %; {held} of {len(rows)} intervals hold")
    if a.json:
        json.dump(rows, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
