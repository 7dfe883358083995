"""The plan that auto_parallel chooses, compared with its competitors by running them on CPU ranks or GPUs of this machine.

  regret.py TRAINCTL [JOB [FIELD=VALUE …]] [--ranks 8] [--device cpu] [--machine NAME] [--random 50] [--top 20] [--rounds 3] [--steps 60] [--seed 1]
            [--budget SECONDS] [--json FILE]

Rivals: plans drawn at random, of which those count that `trainctl plan` accepts; the search's own best; the named plans (data
parallel at each level of optimizer_shard, each product cut by its units, pipelines of 2, 4 and 8 stages); each single change of the
chosen plan. Plans whose programs are the same are one. Each round runs all of them once, in another order, the chosen plan at the
beginning, in the middle and at the end. Prints the median step of each, fastest first, and the regret: how much longer the chosen plan takes than the fastest. Ends with 1 if that is
more than --most (default 5 %; 2 on GPUs).

--budget begins no run after this many seconds. If FILE of --json is there, the same rivals resume from what it has measured: those with
the fewest rounds first, so several short calls are one long one.

Needs a quiet machine: with more ranks than cores, other work on the machine determines the result. --machine is what `trainctl calibrate` wrote here.
"""
import argparse, concurrent.futures, hashlib, json, os, pathlib, random, statistics, subprocess, sys, tempfile, time

root = pathlib.Path(__file__).resolve().parent.parent.parent


def sh(command):
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))


def fields(choice):
    """`parallel` of a job in which all of it is fixed, as an override."""
    parallel = {key: choice[key] for key in ("stages", "micro_batches", "schedule", "recompute", "strategies")}
    if choice.get("chunks", 1) > 1:
        parallel["chunks"] = choice["chunks"]
    return "parallel=" + json.dumps({"mode": "semi_auto_parallel", **parallel, "bucket_bytes": choice.get("bucket_bytes", 0),
                                     "optimizer_shard": {"level": choice["optimizer_shard_level"], "within_host": choice.get("within_host", False)}})


def plan(a, *more):
    run = sh([a.trainctl, "plan", a.job, *a.fields, f"launch.ranks={a.ranks}", f"launch.device={a.device}", f"launch.machine={a.machine}", *more, "--json"])
    return json.loads(run.stdout) if run.returncode == 0 else None


def programs(a, parallel):
    """A key that distinguishes the programs of a plan from others; None: the plan is not legal."""
    run = sh([a.trainctl, "show", "program", a.job, *a.fields, f"launch.ranks={a.ranks}", f"launch.device={a.device}", f"launch.machine={a.machine}", parallel])
    return hashlib.sha256(run.stdout.encode()).hexdigest() if run.returncode == 0 else None


def measure(a, parallel):
    """Seconds of a step, without the first quarter: the median, or on a GPU, which reports steps in bursts, the mean; None: it cannot be run."""
    with tempfile.TemporaryDirectory() as scratch:
        run = sh([a.trainctl, "run", a.job, *a.fields, f"launch.ranks={a.ranks}", f"launch.device={a.device}", f"launch.machine={a.machine}", parallel,
                  f"train.steps={a.steps}", "train.log_every=1", *(["train.sink_steps=4"] if a.device == "cuda" else []), f"launch.log_dir={scratch}/logs"])
        if run.returncode != 0:
            return None
        rows = [json.loads(line) for line in open(f"{scratch}/logs/1/metrics.jsonl")]
    times = [row["seconds"] for row in rows if "step" in row and "seconds" in row]
    return (statistics.mean if a.device == "cuda" else statistics.median)(times[len(times) // 4:])


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def drawn(rng, a, layers):
    """A choice at random; about half of them are illegal."""
    stages = rng.choice([s for s in divisors(a.ranks) if s <= len(layers)])
    cuts = {}
    for layer in layers:
        if rng.random() < 0.6 and layer["strategy"]:
            cuts[layer["name"]] = [[rng.choice(divisors(a.ranks // stages)) if rng.random() < 0.5 else 1 for _ in of_input] for of_input in layer["strategy"]]
    return {"stages": stages, "micro_batches": rng.choice([1, 2, 4, 8]), "schedule": rng.choice(["1f1b", "gpipe", "zero_bubble"]) if stages > 1 else "1f1b",
            "optimizer_shard_level": rng.randrange(4), "recompute": rng.sample([l["name"] for l in layers[:-1]], rng.randrange(3)), "strategies": cuts}


def named(a, report):
    plain = {"stages": 1, "micro_batches": report["micro_batches"], "schedule": "1f1b", "recompute": [], "strategies": {}}
    for level in range(4):
        yield f"data parallel, optimizer_shard {level}", f"parallel={{mode: data_parallel, optimizer_shard: {{level: {level}}}}}"
    wide = {layer["name"]: [[1] * len(layer["strategy"][0]), [a.ranks, 1]] for layer in report["layers"] if layer["type"] == "dense"}
    yield "each product cut by its units", fields({**plain, "optimizer_shard_level": 0, "strategies": wide})
    for stages in (2, 4, 8):
        if a.ranks % stages == 0:
            yield f"{stages} stages", fields({**plain, "optimizer_shard_level": 0, "stages": stages, "micro_batches": max(4, stages)})


def changes(chosen):
    for key, values in (("optimizer_shard_level", range(4)), ("micro_batches", (1, 2, 4, 8, 16)), ("schedule", ("1f1b", "zero_bubble", "gpipe")), ("recompute", ([],))):
        for value in values:
            if value != chosen[key]:
                yield f"{key} {value or 'nothing'}", {**chosen, key: value}
    for pattern in chosen["strategies"]:
        yield f"{pattern} free", {**chosen, "strategies": {p: c for p, c in chosen["strategies"].items() if p != pattern}}


def rivals_of(a):
    """By name, as overrides; the chosen plan first. Each is legal, and has programs of its own."""
    found = plan(a, "parallel={mode: auto_parallel}", "--top", str(a.top))
    if found is None:
        sys.exit("auto_parallel finds no plan")
    tried = [row for row in found["search"]["tried"] if "fault" not in row]
    chosen = tried[0]["choice"]
    rivals, known = {}, set()

    def add(named_plans):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (name, parallel), of in zip(named_plans, pool.map(lambda one: programs(a, one[1]), named_plans)):
                if of is not None and of not in known:
                    known.add(of)
                    rivals[name] = parallel

    add([("chosen", fields(chosen)), *((f"tried: {row['plan']}", fields(row["choice"])) for row in tried[1:]),
         *((f"named: {name}", parallel) for name, parallel in named(a, found)), *((f"change: {name}", fields(choice)) for name, choice in changes(chosen))])
    rng, others, turns = random.Random(a.seed), len(rivals), 40
    for turn in range(turns):
        missing = a.random - (len(rivals) - others)
        if missing <= 0:
            break
        add([(f"random {turn * a.random + i + 1}", fields(drawn(rng, a, found["layers"]))) for i in range(missing)])
    return rivals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("job", nargs="?", default=str(root / "configs/mnist_mlp.yaml"))
    parser.add_argument("fields", nargs="*")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--machine", default="cpu")
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float)
    parser.add_argument("--json")
    a = parser.parse_args()
    end = time.monotonic() + a.budget
    a.most = a.most or (2 if a.device == "cuda" else 5)
    known = json.load(open(a.json)) if a.json and os.path.exists(a.json) else {}
    rivals = {name: row["parallel"] for name, row in known.items()} or rivals_of(a)
    times = {name: row["seconds"] for name, row in known.items() if row["seconds"]}
    failed = {name for name, row in known.items() if row.get("failed")}
    rng = random.Random(a.seed + sum(map(len, times.values())))
    while time.monotonic() < end:
        count = lambda name: len(times.get(name, []))
        least = min(count(name) for name in rivals if name not in failed and name != "chosen")
        if least >= a.rounds:
            break
        order = [name for name in rivals if name != "chosen" and name not in failed and count(name) == least]
        rng.shuffle(order)
        for at, name in enumerate(order):
            for one in (["chosen"] if at % max(1, len(order) // 3) == 0 else []) + [name]:
                if time.monotonic() >= end:
                    break
                seconds = measure(a, rivals[one])
                times.setdefault(one, []).append(seconds) if seconds is not None else failed.add(one)
    if a.json:
        json.dump({name: {"parallel": rivals[name], "seconds": times.get(name), "failed": name in failed} for name in rivals}, open(a.json, "w"), indent=1)
    if "chosen" not in times:
        sys.exit("the chosen plan does not run")
    steps = sorted((statistics.median(all), name) for name, all in times.items())
    for seconds, name in steps:
        print(f"{1e3 * seconds:9.3f} ms [{1e3 * min(times[name]):.3f} .. {1e3 * max(times[name]):.3f}]  {name}")
    regret = 100 * (statistics.median(times["chosen"]) / steps[0][0] - 1)
    print(f"{len(steps)} of {len(rivals)} plans run, {len(failed)} could not, rounds {min(map(len, times.values()))} to {max(map(len, times.values()))}; regret {regret:.1f} %, the fastest is {steps[0][1]}")
    sys.exit(1 if regret > a.most else 0)


if __name__ == "__main__":
    main()
