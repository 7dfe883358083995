"""Measures the cost of planning: a GPT-shaped network under data and tensor parallelism, over ranks and over layers.

  plan_scale.py TRAINCTL [--rounds N] [--search]

With --search the plans are those of auto_parallel: the reference job, and GPT-2 of 1.5B parameters (48 blocks) on 8 to 4,096
GPUs, 8 samples each. Prints for each job the seconds (wall and CPU, the best of N rounds) and the peak memory of `trainctl plan`, the size of
`plan --json`, and how many classes of ranks it compiled. Needs no GPU, and no memory but the planner's.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile, time

SEQUENCE, UNITS, HEADS, VOCABULARY = 128, 1024, 16, 50304

BLOCK = """    - {{name: ln1, type: layer_norm}}
    - {{name: q, type: dense, units: {units}}}
    - {{name: q_heads, type: reshape, shape: [{seq}, {heads}, {head}]}}
    - {{name: q_t, type: transpose, perm: [0, 2, 1, 3]}}
    - {{name: k, type: dense, units: {units}, inputs: ln1}}
    - {{name: k_heads, type: reshape, shape: [{seq}, {heads}, {head}]}}
    - {{name: k_t, type: transpose, perm: [0, 2, 1, 3]}}
    - {{name: v, type: dense, units: {units}, inputs: ln1}}
    - {{name: v_heads, type: reshape, shape: [{seq}, {heads}, {head}]}}
    - {{name: v_t, type: transpose, perm: [0, 2, 1, 3]}}
    - {{name: scores, type: matmul, inputs: [q_t, k_t], transpose_b: true}}
    - {{name: weights, type: softmax}}
    - {{name: mixed, type: matmul, inputs: [weights, v_t]}}
    - {{name: mixed_t, type: transpose, perm: [0, 2, 1, 3]}}
    - {{name: joined, type: reshape, shape: [{seq}, {units}]}}
    - {{name: proj, type: dense, units: {units}}}
    - {{name: sum1, type: add, inputs: [proj, input]}}
    - {{name: ln2, type: layer_norm}}
    - {{name: fc1, type: dense, units: {wide}}}
    - {{name: act, type: gelu, approximate: tanh}}
    - {{name: fc2, type: dense, units: {units}}}
    - {{name: sum2, type: add, inputs: [fc2, sum1]}}
"""
LAYERS_OF_BLOCK = BLOCK.count("name:")


def job(blocks, ranks, tensor_parallel, stages=1, level=0, clip=False):
    data_parallel = max(1, ranks // stages // tensor_parallel)
    micro_batches = 8 if stages > 1 else 1
    batch = data_parallel * micro_batches
    cut_rows, cut_columns = f"[[{data_parallel}, 1, 1], [{tensor_parallel}, 1]]", f"[[{data_parallel}, 1, {tensor_parallel}], [1, {tensor_parallel}]]"
    strategies = "".join(f"    'h.*.{name}': {cut_columns if name in ('proj', 'fc2') else cut_rows}\n" for name in ("q", "k", "v", "proj", "fc1", "fc2"))
    return f"""name: gpt
dataset: {{type: random, shape: [{SEQUENCE}], dtype: i32, label_shape: [{SEQUENCE}], label_dtype: i32, classes: {VOCABULARY}, batch: {batch}, samples: {batch}}}
modules:
  block:
{BLOCK.format(seq=SEQUENCE, units=UNITS, wide=4 * UNITS, heads=HEADS, head=UNITS // HEADS)}network:
  - {{name: wte, type: embedding, vocab: {VOCABULARY}, units: {UNITS}}}
  - {{module: block, name: h, repeat: {blocks}}}
  - {{name: ln, type: layer_norm}}
  - {{name: head, type: dense, units: {VOCABULARY}, bias: false}}
loss: softmax_cross_entropy
optimizer: {{type: adamw, learning_rate: 0.001{', clip_norm: 1.0' if clip else ''}}}
parallel:
  mode: semi_auto_parallel
  stages: {stages}
  micro_batches: {micro_batches}
  optimizer_shard: {{level: {level}}}
  strategies:
{strategies}launch: {{ranks: {ranks}, device: cpu}}
"""


def measure(binary, path, words):
    """Wall and CPU seconds, peak KB, output."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([binary, "plan", path, *words], stdout=out, stderr=subprocess.PIPE)
        error = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"trainctl plan failed: {error.decode()[-2000:]}")
        out.seek(0)
        return time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss, out.read()


def row(binary, rounds, blocks, ranks, tensor_parallel, **more):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(job(blocks, ranks, tensor_parallel, **more))
        file.flush()
        plans = [measure(binary, file.name, []) for _ in range(rounds)]
        report = measure(binary, file.name, ["--json"])[3]
    classes = json.loads(report).get("rank_classes")  # older binaries have none
    text = ", ".join(f"{key} {value}" for key, value in more.items() if value)
    print(f"{blocks * LAYERS_OF_BLOCK + 3:7d} {ranks:7d}  {text:22s} {min(p[0] for p in plans):8.2f} {min(p[1] for p in plans):8.2f} "
          f"{max(p[2] for p in plans) / 1024:9.0f} {len(report) / 1e6:9.1f} {len(classes) if classes else '-':>8}", flush=True)


def search_row(binary, rounds, what, words, aims):
    plans = [measure(binary, words[0], words[1:]) for _ in range(rounds)]
    report = json.loads(measure(binary, words[0], [*words[1:], "--json"])[3])
    search = report["search"]
    print(f"{what:24s} {min(p[0] for p in plans):8.3f} {min(p[1] for p in plans):8.3f} {max(p[2] for p in plans) / 1024:9.0f} {search['weighed']:8d} "
          f"{len(search['tried']) + search['not_shown']:6d} {100 * search['gap']:6.1f} %  {aims}", flush=True)


def search_rows(binary, rounds, most_ranks):
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    auto = ["parallel={mode: auto_parallel}"]
    print(f"{'':24s} {'wall s':>8s} {'CPU s':>8s} {'peak MiB':>9s} {'weighed':>8s} {'tried':>6s} {'gap':>8s}  aims")
    search_row(binary, rounds, "reference job, 8 ranks", [str(root / "configs/mnist_mlp.yaml"), *auto], "0.05 s")
    gpt2 = [str(root / "templates/gpt2.yaml"), "vars.layers=48", "vars.heads=25", "vars.d=1600", "launch.device=cuda", "launch.machine=h200x8", *auto]
    for ranks, aims in ((8, "0.1 s"), (64, "0.3 s"), (1024, "1 s"), (4096, "2 s, 300 MiB")):
        if ranks <= most_ranks:
            search_row(binary, rounds, f"GPT-2 1.5B, {ranks} ranks", [*gpt2, f"launch.ranks={ranks}", f"dataset.batch={8 * ranks}"], aims)
    for layers in (12, 24, 96):
        words = [w if not w.startswith("vars.layers") else f"vars.layers={layers}" for w in gpt2]
        search_row(binary, rounds, f"GPT-2 of {layers} blocks, 8", [*words, "launch.ranks=8", "dataset.batch=64"], "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-ranks", type=int, default=4096)
    parser.add_argument("--search", action="store_true")
    a = parser.parse_args()
    if a.search:
        search_rows(a.binary, a.rounds, a.most_ranks)
        return
    print(f"{'layers':>7s} {'ranks':>7s}  {'':22s} {'wall s':>8s} {'CPU s':>8s} {'peak MiB':>9s} {'json MB':>9s} {'classes':>8s}")
    for ranks in (8, 64, 512, 4096):
        if ranks <= a.most_ranks:
            row(a.binary, a.rounds, 48, ranks, 8)
    for more in ({"level": 1}, {"level": 2}, {"level": 3}, {"clip": True}, {"level": 2, "clip": True}, {"stages": 8}):
        if a.most_ranks >= 4096:
            row(a.binary, a.rounds, 48, 4096, 8, **more)
    for blocks in (36, 73, 145, 290):
        row(a.binary, a.rounds, blocks, 8, 8)


main()
