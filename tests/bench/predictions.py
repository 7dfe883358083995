"""Predicted steps compared with measured ones.

  predictions.py TRAINCTL --machine NAME [--device cuda] [--gpus 1] [--suite one] [--rounds N] [--budget SECONDS] [--json FILE] [--measured FILE]

NAME is what `trainctl calibrate --name NAME` wrote on this machine, or a machine that comes with the program. Each case
is a job of configs/ or templates/ with fields of its own; cases of one job are plans that compete. Prints for each case
the predicted step with its interval, the median of the measured steps with the lowest and highest round, the error and
the memory; then for each job Kendall's tau of the order (pairs that differ by less than the spread of the rounds do
not count), and over all the mean and largest error and how many intervals hold. A case that needs more ranks than
--gpus is left out; on a CPU more than --ranks. --suite takes plans that compete in one job on one GPU (one) or two (two): MLPs,
LeNet, blocks of a GPT; data, tensor and pipeline parallel, recompute, levels of optimizer_shard, and pairs of these.
--budget: begins no round after this many seconds, and prints how many cases were left out.

On GPUs the memory is that of `nvidia-smi` while the job runs, without what was used before it. What driver and libraries take is
no part of a plan: the median of what is measured beyond the plans of a number of ranks, with or without stages, stands for it, and the error is what the others
are off, as a part of the measured figure.

--measured FILE measures nothing: it predicts again what an earlier --json FILE has measured, and prints the
earlier error of the prediction next to the new one, for the plan that was measured, with the same cut into stages ("cut" of each row). measured/ has a
calibration of two H100s (h100_pair.json), what the suite `two` measured there, and what `one` measured on another (h100_one.json; 2026-11-26 and 27), so a change of
the estimator is judged without a GPU:

  predictions.py TRAINCTL --machine tests/bench/measured/h100_pair.json --device cuda --suite two --gpus 2 --measured tests/bench/measured/h100_pair_two.json
"""
import argparse, itertools, json, os, pathlib, statistics, subprocess, sys, tempfile, threading, time

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

SMALL, WIDE, CLASSIFIER = "templates/gpt2.yaml", "templates/mlp.yaml", "configs/lenet.yaml"
tiny = ["vars.layers=6", "vars.d=768", "vars.heads=12", "dataset.batch=8"]
again = "parallel.recompute=['h.*']"
wide = ["dataset.shape=[4096]", "dataset.batch=4096", "dataset.samples=4096", "network[1].units=4096", "network[3].units=4096"]
cut_gpt = "parallel.strategies={h.*.qkv: [[1,1,1],[2,1]], h.*.proj: [[1,1,2],[1,2]], h.*.up: [[1,1,1],[2,1]], h.*.down: [[1,1,2],[1,2]]}"
cut_mlp = "parallel.strategies={fc1: [[1,1],[2,1]], fc2: [[1,2],[1,2]]}"
data, auto = "parallel.mode=data_parallel", "parallel.mode=semi_auto_parallel"
stages = [auto, "parallel.stages=2"]
level = "parallel.optimizer_shard.level={}".format
micro = "parallel.micro_batches={}".format
lenet_cuda = ["validation=null", "metrics=[]"]


def with_ranks(job, fixed, ranks, *plans):
    return [(job, [*fixed, f"launch.ranks={ranks}", *([] if ranks > 1 else alone[1:]), *plan]) for plan in plans]


SUITES = {
    "one": [
        *with_ranks(SMALL, tiny, 1, [], [micro(2)], [micro(4)], [again], [again, micro(2)], ["parallel.recompute=['h.*.attn']"], ["parallel.recompute=[]"], ["precision=fp32"]),
        *with_ranks(WIDE, wide, 1, [], [micro(2)], [micro(4)], ["parallel.recompute=['act*']"], ["parallel.recompute=['act*']", micro(2)], ["precision=bf16"]),
        *with_ranks(CLASSIFIER, [*lenet_cuda, "dataset.batch=1000"], 1, [], [micro(2)], [micro(4)], ["parallel.recompute=['pool*']"], [micro(8)]),
        *with_ranks(SMALL, ["vars.layers=4", "vars.d=1024", "vars.heads=16", "dataset.batch=16"], 1, [], [micro(2)], [again], [micro(4), again]),
    ],
    "two": [
        *with_ranks(SMALL, tiny, 2, [data], [data, level(1)], [data, level(2)], [data, level(3)], [data, again], [data, level(3), again], [data, micro(2)],
                    [data, level(1), micro(2)], [auto, cut_gpt], [auto, cut_gpt, again], [auto, cut_gpt, micro(2)], [*stages, micro(4)], [*stages, micro(8)],
                    [*stages, micro(4), again], [*stages, micro(4), "parallel.schedule=gpipe"], [*stages, micro(4), "parallel.schedule=zero_bubble"]),
        *with_ranks(WIDE, wide, 2, [data], [data, level(1)], [data, level(2)], [data, level(3)], [auto, cut_mlp], [auto, cut_mlp, micro(2)], [*stages, micro(4)],
                    [data, level(2), micro(2)]),
        *with_ranks(CLASSIFIER, [*lenet_cuda, "dataset.batch=1000"], 2, [data], [data, level(1)], [data, level(2)], [*stages, micro(4)], [data, micro(2)]),
    ],
}
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


def device_bytes(memory):
    """The memory of a rank's device according to the plan, with the parts that a rank leaves out if there is no room, and the data set."""
    return memory["total"] + memory.get("data_set", 0) - memory.get("unsent", 0) + memory.get("copy_engines", 0)


def cut_of(plan):
    """The field that cuts the stages as this plan does, whatever the machine; none if there is one stage."""
    if plan["stages"] == 1 or plan["chunks"] > 1:
        return []
    return ["parallel.stage_config={" + ", ".join(f"'{layer['name']}': {layer['stage']}" for layer in plan["layers"]) + "}"]


def predict(a, job, sets):
    """The estimate, the bytes of all devices, and the field that makes the same plan again."""
    plan = json.loads(sh([a.trainctl, "plan", str(root / job), "--json", f"launch.device={a.device}", f"launch.machine={a.machine}", *sets]))
    return plan["estimate"], sum(device_bytes(c["memory"]) * c["count"] for c in plan["rank_classes"]), cut_of(plan)


def used_bytes():
    """The used memory of all GPUs together according to the driver; None if there is no nvidia-smi."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return sum(int(line) for line in text.stdout.split()) << 20 if text.returncode == 0 else None


class MemoryWatch:
    """The most that GPUs hold while a job trains, beyond what they held before: in the later part of its time, since at
    its start a job also holds the operands on which it tries algorithms."""

    def __init__(self, is_on):
        self.before, self.seen, self.over = used_bytes() if is_on else None, [], threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        if self.before is not None:
            self.thread.start()
        return self

    def look(self):
        while not self.over.wait(0.05):
            self.seen.append(used_bytes() or 0)

    def __exit__(self, *_):
        self.over.set()
        if self.before is not None:
            self.thread.join()

    def bytes(self):
        later = self.seen[len(self.seen) * 3 // 5:]
        return max(later) - self.before if self.before is not None and later else None


def measure(a, job, sets, seconds):
    """Seconds of a step, as metrics.jsonl has it, without the first quarter: on a CPU the median, since others run there
    too; on a GPU, which reports steps in bursts, all of them divided by their number."""
    steps = max(24, min(400, int(a.seconds / seconds)))
    with tempfile.TemporaryDirectory() as scratch:
        sh([a.trainctl, "run", str(root / job), f"launch.device={a.device}", f"launch.machine={a.machine}", *sets, f"train.steps={steps}", "train.epochs=1000000",
            "train.log_every=1", f"launch.log_dir={scratch}/logs"])
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
    parser.add_argument("--suite", choices=sorted(SUITES))
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--only", default="", help="cases whose text has this")
    parser.add_argument("--json")
    parser.add_argument("--measured", help="a --json of an earlier run")
    a = parser.parse_args()
    if "/" in a.machine:
        a.machine = os.path.abspath(a.machine)

    cases = [(job, sets if any(s.startswith("launch.ranks") for s in sets) else [*alone, *sets]) for job, sets in
             (SUITES[a.suite] if a.suite else (CUDA + TWO) if a.device == "cuda" else CPU)]
    known = {}
    if a.measured:
        known = {row["case"]: row for row in json.load(open(a.measured))}
        a.gpus = a.ranks = 1 << 20
    cases = [(job, sets) for job, sets in cases if ranks(sets) <= (a.gpus if a.device == "cuda" else a.ranks) and a.only in f"{job} {' '.join(sets)}"]
    if a.suite:  # of each job in turn, so that a budget that ends early leaves some of each
        of_job = [[c for c in cases if c[0] == job] for job in dict.fromkeys(job for job, _ in cases)]
        cases = [c for turn in itertools.zip_longest(*of_job) for c in turn if c]
    rows, left_out, end = [], 0, time.monotonic() + a.budget
    print(f"{'predicted':>10s}   {'nine of ten':20s} {'measured':>10s}   {'rounds':20s} {'error':>7s}  case", flush=True)
    for job, sets in cases:
        name = " ".join([pathlib.Path(job).stem, *(s for s in sets if s not in mnist and s not in alone)])
        before = known.get(name)
        if a.measured and not before:
            continue
        if time.monotonic() > end:
            left_out += 1
            continue
        try:
            estimate, memory, cut = predict(a, job, [*sets, *(before or {}).get("cut", [])])
            if before:
                rounds, held = [before["lowest"], before["measured"], before["highest"]], before.get("gpu_bytes")
            else:
                rounds, held = [], None
                for _ in range(a.rounds):
                    with MemoryWatch(a.device == "cuda") as watch:
                        rounds.append(measure(a, job, [*sets, *cut], estimate["seconds"]))
                    held = watch.bytes()
        except RuntimeError as failure:
            print(f"failed: {name}: {failure}", flush=True)
            continue
        row = {"case": name, "job": job, "predicted": estimate["seconds"], "low": estimate["low"], "high": estimate["high"], "parts": estimate["parts"],
               "measured": statistics.median(rounds), "lowest": min(rounds), "highest": max(rounds), "memory": memory, "gpu_bytes": held,
               "ranks": ranks(sets), "cut": cut}
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
    if left_out:
        print(f"{left_out} cases were left out: --budget {a.budget:.0f} was over")
    sends = lambda row: "parallel.stages=" in row["case"]  # NCCL takes more for messages than for collectives alone
    for count, with_stages in sorted({(row["ranks"], sends(row)) for row in rows if row["gpu_bytes"]}):
        known = [row for row in rows if row["gpu_bytes"] and (row["ranks"], sends(row)) == (count, with_stages)]
        beyond = statistics.median(row["gpu_bytes"] - row["memory"] for row in known)
        off = {row["case"]: (row["memory"] + beyond) / row["gpu_bytes"] - 1 for row in known}
        worst = max(off, key=lambda case: abs(off[case]))
        print(f"memory, {count} ranks{' in stages' if with_stages else ''}: {len(off)} plans, driver and libraries {beyond / count / 2**20:.0f} MiB per rank; mean error "
              f"{100 * statistics.mean(map(abs, off.values())):.2f} %, largest {100 * abs(off[worst]):.2f} % ({worst})")
    if a.json:
        json.dump(rows, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
