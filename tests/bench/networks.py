"""A training step of whole networks compared with PyTorch, alternating between the two in one run.

  networks.py TRAINCTL [lenet gpt moe …] [--threads 1 2] [--rounds N]
  networks.py TRAINCTL [resnet50 gpt2 llama …] --device cuda [--batch B] [--set parallel.recompute=[] …] [--llmc train_gpt2cu]

TRAINCTL may be of any install tree. The jobs are configs/ and templates/ of this repository, the peers
networks_torch.py: eager on a CPU with the same threads, eager and compiled on a GPU in bf16; and llm.c's program for
GPT-2, built with cuDNN, on tokens made up here. Prints, for each case,
the median over the rounds of each round's median step, with the lowest and the highest round, the ratio of the
medians and those of the single rounds, and memory: on a CPU of the largest process; on a GPU what the plan and
PyTorch's allocator say, and the most that nvidia-smi saw in use.
"""
import argparse, contextlib, json, math, os, pathlib, re, statistics, struct, subprocess, sys, tempfile

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent

# The peers recompute nothing either. They round gradients to bf16 too: PyTorch's autocast those of its weights' copies, llm.c all.
KEEP_ALL = ["parallel.recompute=[]"]
BF16_GRADIENTS = ["gradient_precision=bf16"]


def gpt2(layers, heads, d):
    return ("templates/gpt2.yaml", 16, 60, "gpt", dict(layers=layers, d=d, heads=heads, length=1024, vocab=50304),
            [f"vars.layers={layers}", f"vars.heads={heads}", f"vars.d={d}", *KEEP_ALL, *BF16_GRADIENTS])


def vit(d, heads, layers, size, patch, classes):
    rows = (size // patch) ** 2
    data = f"dataset={{type: random, shape: [3, {size}, {size}], label_shape: [], label_dtype: i32, classes: {classes}, samples: 64}}"
    return ("configs/cookbook/vit.yaml", 16, 40, "vit", dict(d=d, heads=heads, layers=layers, size=size, patch=patch, classes=classes),
            [data, f"vars.d={d}", f"vars.heads={heads}", f"vars.layers={layers}", f"network.patches.kernel={patch}", f"network.patches.stride={patch}",
             f"network.rows.shape=[{d},{rows}]", f"network.wpe.max_length={rows}", f"network.head.units={classes}", "metrics=[]", "validation=null",
             "optimizer={type: adamw, learning_rate: 0.001, betas: [0.9, 0.95], weight_decay: 0.1}"])


def unet(width, size):
    return ("configs/cookbook/unet.yaml", 16, 40, "unet", dict(d=width, size=size),
            [f"vars.width={width}", f"dataset.shape=[1,{size},{size}]", "metrics=[]", "validation=null",
             "optimizer={type: sgd, momentum: 0.9, learning_rate: 0.02}"])


# job, batch, steps, the peer and its sizes, fields of the job
NETWORKS = {
    "lenet": ("configs/lenet.yaml", 64, 400, "lenet", {}, []),
    "gpt": ("configs/gpt_text.yaml", 8, 40, "gpt", dict(layers=4, d=128, heads=4, length=128, vocab=256), []),
    "moe": ("configs/cookbook/moe.yaml", 16, 60, "moe", {"layers": 2, "d": 64, "heads": 4, "kv-heads": 4, "hidden": 128, "experts": 8, "top-k": 2, "length": 64,
                                                        "vocab": 256}, ["parallel={mode: stand_alone}"]),
    "vit": vit(192, 3, 6, 64, 8, 10),
    "unet": unet(16, 64),
    "vit_small": vit(64, 4, 2, 8, 2, 10),
    "unet_small": unet(8, 32),
    "resnet50": ("templates/resnet50.yaml", 256, 60, "resnet50", {}, []),
    "gpt2": gpt2(12, 12, 768),
    "gpt2_350m": gpt2(24, 16, 1024),
    "gpt2_774m": gpt2(36, 20, 1280),
    "gpt2_1558m": gpt2(48, 25, 1600),
    "llama": ("templates/llama.yaml", 16, 60, "llama",
              {"layers": 16, "d": 1024, "heads": 16, "kv-heads": 4, "hidden": 2816, "length": 1024, "vocab": 32000}, KEEP_ALL),
}
ON = {"cpu": ("lenet", "gpt", "moe", "vit", "unet"), "cuda": ("resnet50", "gpt2", "gpt2_350m", "llama")}


@contextlib.contextmanager
def memory_in_use(device):
    """The most GPU memory in use, in bytes, as `[0]` of what it yields after the block; 0 on a CPU."""
    most = [0]
    if device == "cpu":
        yield most
        return
    watch = subprocess.Popen(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "100"],
                             stdout=subprocess.PIPE, text=True)
    try:
        yield most
    finally:
        watch.terminate()
        most[0] = max((int(line) << 20 for line in watch.communicate()[0].split() if line.isdigit()), default=0)


def sh(command, threads):
    """Its output, and the peak memory of its largest process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        run = subprocess.Popen(command, stdout=out, stderr=err, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if run.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}\n{out.read()[-2000:]}{err.read()[-2000:]}")
        return out.read(), usage.ru_maxrss << 10


def trainctl(a, name, threads):
    """The median step in ms without the first quarter, and bytes of memory."""
    job, batch, steps, _, _, sets = NETWORKS[name]
    sets = [*sets, f"launch.device={a.device}", "launch.ranks=1", "parallel.mode=stand_alone", f"dataset.batch={a.batch or batch}",
            f"train.steps={steps}", "train.log_every=1", *a.set]
    with tempfile.TemporaryDirectory() as scratch:
        _, memory = sh([a.trainctl, "run", str(root / job), *sets, f"launch.log_dir={scratch}/logs"], threads)
        rows = [json.loads(line) for line in open(f"{scratch}/logs/1/metrics.jsonl")]
    if a.device == "cuda":
        plan, _ = sh([a.trainctl, "plan", str(root / job), "--json", *sets], threads)
        memory = json.loads(plan)["rank_classes"][0]["arena_bytes"]
    times = [row["seconds"] * 1e3 for row in rows if "step" in row and "seconds" in row]
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    if not losses or not all(map(math.isfinite, losses)) or losses[-1] >= losses[0]:
        sys.exit(f"{name} does not learn: its loss goes from {losses[:1]} to {losses[-1:]}")
    return statistics.median(times[len(times) // 4:]), memory


def torch(a, name, threads, compiled):
    _, batch, steps, peer, sizes, _ = NETWORKS[name]
    command = [a.python, str(here / "networks_torch.py"), peer, "--device", a.device, "--threads", str(threads),
               "--batch", str(a.batch or batch), "--steps", str(steps), *(["--compile"] if compiled else [])]
    for size, value in sizes.items():
        command += [f"--{size}", str(value)]
    report = json.loads(sh(command, threads)[0].strip().splitlines()[-1])
    return report["ms"], report["memory"]


def llmc(a, name):
    """llm.c starts from random weights of the given depth, with float32 masters, and reads a file of uint16 tokens."""
    _, batch, steps, _, sizes, _ = NETWORKS[name]
    batch, length = a.batch or batch, sizes["length"]
    with tempfile.TemporaryDirectory() as scratch:
        count = (steps + 1) * batch * length + 1
        with open(f"{scratch}/tokens_train.bin", "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.write(tokens(count))
        words = {"-i": file.name, "-j": file.name, "-e": f"d{sizes['layers']}", "-b": batch, "-t": length, "-x": steps, "-v": 10**6, "-m": 1,
                 "-s": 0, "-h": 0, "-r": 0}
        out, _ = sh([a.llmc, *(str(word) for pair in words.items() for word in pair)], 1)
    times = [float(ms) for ms in re.findall(r"^step .* ([\d.]+) ms ", out, re.M)]
    return statistics.median(times[len(times) // 4:]), 0


def tokens(count):
    """Tokens of two bytes each, below 50,176."""
    noise = bytearray(os.urandom(2 * count))
    noise[1::2] = bytes(high % 196 for high in noise[1::2])
    return noise


def compare(a, name, threads):
    kinds = {"trainctl": lambda: trainctl(a, name, threads)}
    if not a.no_eager:
        kinds["eager"] = lambda: torch(a, name, threads, False)
    if a.device == "cuda" and not a.no_compiled:
        kinds["compiled"] = lambda: torch(a, name, threads, True)
    if a.llmc and NETWORKS[name][0] == "templates/gpt2.yaml":
        kinds["llm.c"] = lambda: llmc(a, name)
    ms, memory = {kind: [] for kind in kinds}, dict.fromkeys(kinds, (0, 0))
    for _ in range(a.rounds):
        for kind, measure in kinds.items():
            with memory_in_use(a.device) as seen:
                step, bytes_ = measure()
            ms[kind].append(step)
            memory[kind] = max(memory[kind], (bytes_, seen[0]))
    label = f"{name}, batch {a.batch or NETWORKS[name][1]}" + (f", {threads} thread{'s'[:threads - 1]}" if a.device == "cpu" else "")
    for kind, steps in ms.items():
        row = f"{label:28s} {kind:9s} {spread(steps, 'ms', 2):34s} {memory[kind][0] / 2**20:8.0f} MiB"
        if a.device == "cuda":
            row += f", {memory[kind][1] / 2**20:.0f} in use"
        if kind != "trainctl":
            rounds = [theirs / ours for ours, theirs in zip(ms["trainctl"], steps)]
            row += f"   {statistics.median(steps) / statistics.median(ms['trainctl']):.2f}x [{min(rounds):.2f} .. {max(rounds):.2f}]"
        print(row, flush=True)


def spread(values, unit, digits):
    return f"{statistics.median(values):.{digits}f} {unit} [{min(values):.{digits}f} .. {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--device", choices=ON, default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="of each run")
    parser.add_argument("--set", action="append", default=[], help="a field of the job")
    parser.add_argument("--no-eager", action="store_true", help="on a GPU: only the compiled peer")
    parser.add_argument("--no-compiled", action="store_true", help="on a GPU: without PyTorch compiled")
    parser.add_argument("--llmc", metavar="BIN", help="train_gpt2cu of llm.c, a peer of the GPT-2s")
    ours = root / "build/peers/bin/python3"
    parser.add_argument("--python", default=str(ours) if ours.exists() else sys.executable, help="that has PyTorch")
    a = parser.parse_args()
    unknown = set(a.networks) - set(NETWORKS)
    if unknown:
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(NETWORKS)}")
    if a.steps:
        NETWORKS.update({name: (job, batch, a.steps, *rest) for name, (job, batch, _, *rest) in NETWORKS.items()})
    for name in a.networks or ON[a.device]:
        for threads in a.threads if a.device == "cpu" else [1]:
            compare(a, name, threads)


if __name__ == "__main__":
    main()
