"""Trainings that others published, beside what data sheets alone predict of an equal job.

  published.py TRAINCTL [--only TEXT] [--json FILE]

Needs no GPU: runs `trainctl plan` for a machine that comes with the program or lies in tests/bench/machines. Prints for each
row the predicted and the published step, the error, and the error with one factor a source (the geometric mean of
published over predicted), which stands for what a source's software reaches and ours does not know; then for each source
that factor, the mean error with and without it, and Kendall's tau of the order.

A source that does not tell how many samples a micro-batch has took what was fastest, and so does the prediction: of 1, 2, 4
and 8. Jobs of many micro-batches are predicted with two and three for each stage, and continued in a straight line.

Sources:
  Megatron-LM         Narayanan and others, SC'21, table 1: GPTs of 2,048 tokens and a vocabulary of 51,200 on A100, each block
                      recomputed; seconds by its equation 3 from teraFLOP/s, 1f1b
  torchtitan 2024-06  github.com/pytorch/torchtitan, docs/performance.md: Llama 3 on 64 A100, FSDP2, 8,192 tokens a sample
  torchtitan 2024-12  github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: tables 1 and 3, the rows
                      with torch.compile in bf16; H100 of 2.4 TB/s at 500 W, 400 Gb/s a GPU
  nanotron            huggingface.co/nanotron/old_bench, llama-1B/8_GPUS/*/log_metrics.csv, the steps after the second: a
                      Llama of 24 layers of 2,048, 16 heads, hidden 4,096, on 1,024 samples of 4,096 tokens. Sizes are those
                      that its figures of operations a token follow from.

Not expressed: fp8; sequence and context parallelism; "selective op" recompute (every second product: the template's own
list stands for it); chunks of stages, of which Megatron-LM's table does not tell the number; its rows of more than 1,536 GPUs
take too long to plan.
"""
import argparse, itertools, json, math, pathlib, statistics, subprocess, sys

root = pathlib.Path(__file__).resolve().parent.parent.parent
machines = root / "tests/bench/machines"


def llama(layers, d, hidden, heads, kv_heads, length, vocab, batch, ranks, *more):
    return ["templates/llama.yaml", f"vars.layers={layers}", f"vars.d={d}", f"vars.hidden={hidden}", f"vars.heads={heads}", f"vars.kv_heads={kv_heads}",
            f"vars.length={length}", f"vars.vocab={vocab}", f"dataset.batch={batch}", f"launch.ranks={ranks}", *more]


def fsdp(size, batch, ranks, recompute):
    sizes = {"8B": (32, 4096, 14336, 32), "70B": (80, 8192, 28672, 64)}[size]
    layers = sizes[0]
    lists = {"layer": [f"h.{i}.*" for i in range(0, layers, 2)], "full": ["h.*"], "op": None}[recompute]
    return llama(*sizes, 8, 8192, 128256, batch, ranks, "parallel.mode=data_parallel", "parallel.optimizer_shard.level=3",
                 *([f"parallel.recompute={json.dumps(lists)}"] if lists else []))


def nanotron(dp, tp, pp, micro):
    wide, narrow = f"[[{dp},1,1],[{tp},1]]", f"[[{dp},1,{tp}],[1,{tp}]]"
    cuts = ", ".join([*(f"h.*.{name}: {wide}" for name in ("qkv", "gate", "up")), *(f"h.*.{name}: {narrow}" for name in ("proj", "down")),
                      f"table: [[{dp},1],[{tp},1]]", f"head: {wide}"])
    return llama(24, 2048, 4096, 16, 16, 4096, 50304, 1024, 8, f"parallel.stages={pp}", f"parallel.micro_batches={1024 // (dp * micro)}",
                 f"parallel.strategies={{{cuts}}}", "parallel.recompute=[]")


class Megatron:
    """A row of the table: (layers, width, heads, tensor, stages, GPUs, batch)."""

    def __init__(self, layers, d, heads, tp, pp, ranks, batch):
        self.layers, self.d, self.heads, self.tp, self.pp, self.ranks, self.batch = layers, d, heads, tp, pp, ranks, batch

    def seconds(self, teraflops):
        s, h, l, v = 2048, self.d, self.layers, 51200
        return 96 * self.batch * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h)) / (self.ranks * teraflops * 1e12)

    def job(self, micro, micro_batches):
        dp = self.ranks // self.tp // self.pp
        wide, narrow = f"[[{dp},1,1],[{self.tp},1]]", f"[[{dp},1,{self.tp}],[1,{self.tp}]]"
        cuts = ", ".join([*(f"h.*.{name}: {wide}" for name in ("qkv", "up")), *(f"h.*.{name}: {narrow}" for name in ("proj", "down")),
                          f"wte: [[{dp},1],[{self.tp},1]]", f"head: {wide}"])
        again = [f"h.*.{name}" for name in ("ln1", "qkv", "attn", "proj", "sum1", "ln2", "up", "act", "down")]
        return ["templates/gpt2.yaml", f"vars.layers={self.layers}", f"vars.d={self.d}", f"vars.heads={self.heads}", "vars.length=2048", "vars.vocab=51200",
                "dataset.classes=51200", f"dataset.batch={dp * micro * micro_batches}", f"launch.ranks={self.ranks}", f"parallel.stages={self.pp}",
                f"parallel.micro_batches={micro_batches}", f"parallel.strategies={{{cuts}}}", f"parallel.recompute={json.dumps(again)}"]

    def predict(self, step):
        """Seconds, and whether it fits, of the fastest micro-batch that fits."""
        found = []
        for micro in (1, 2, 4, 8):
            count, left = divmod(self.batch, self.ranks // self.tp // self.pp * micro)
            if left or count < self.pp:
                continue
            few, more = 2 * self.pp, 3 * self.pp
            if count <= more:
                found.append(step(self.job(micro, count)))
                continue
            (a, fits), (b, _) = step(self.job(micro, few)), step(self.job(micro, more))
            found.append((a + (b - a) * (count - few) / (more - few), fits))
        return min(found, key=lambda f: (f[1] is False, f[0]))


tokens = lambda samples, per_second: samples * 8192 / per_second  # a GPU's samples, and its tokens a second
MEGATRON = [(Megatron(24, 2304, 24, 1, 1, 32, 512), 137), (Megatron(30, 3072, 32, 2, 1, 64, 512), 138), (Megatron(36, 4096, 32, 4, 1, 128, 512), 142),
            (Megatron(40, 6144, 48, 8, 1, 256, 1024), 135), (Megatron(48, 8192, 64, 8, 2, 512, 1536), 138), (Megatron(60, 10240, 80, 8, 4, 1024, 1792), 140),
            (Megatron(80, 12288, 96, 8, 8, 1536, 2304), 148)]
ROWS = [  # source, what, machine, job, published seconds
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, every second block again", "a100x8", fsdp("8B", 64, 64, "layer"), tokens(1, 2904)),
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, some products again", "a100x8", fsdp("8B", 64, 64, "op"), tokens(1, 2973)),
    ("torchtitan 2024-06", "Llama 3 70B, 64 A100, every block again", "a100x8", fsdp("70B", 64, 64, "full"), tokens(1, 331)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 8 H100", machines / "grand_teton.json", fsdp("8B", 16, 8, "op"), tokens(2, 6667)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 128 H100", machines / "grand_teton.json", fsdp("8B", 256, 128, "op"), tokens(2, 6514)),
    *(("Megatron-LM", f"{m.layers} blocks of {m.d}, {m.ranks} A100: tensor {m.tp}, stages {m.pp}", "a100x8", m, m.seconds(teraflops)) for m, teraflops in MEGATRON),
    *(("nanotron", f"Llama 1B, 8 H100: data {dp}, tensor {tp}, stages {pp}, micro-batch {micro}", "h100x8", nanotron(dp, tp, pp, micro), seconds)
      for dp, tp, pp, micro, seconds in ((4, 2, 1, 8, 15.8), (2, 4, 1, 8, 18.9), (1, 8, 1, 8, 26.2), (1, 4, 2, 8, 20.3), (1, 2, 4, 4, 23.6), (2, 2, 2, 1, 46.8))),
]


def tau(rows):
    pairs = [(a["published"] - b["published"]) * (a["predicted"] - b["predicted"]) for a, b in itertools.combinations(rows, 2)]
    return sum(1 if p > 0 else -1 for p in pairs) / len(pairs) if pairs else 1.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainctl")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    a = parser.parse_args()
    rows, failed = [], 0
    for source, what, machine, job, published in ROWS:
        if a.only not in f"{source} {what}":
            continue

        def step(words):
            run = subprocess.run([a.trainctl, "plan", str(root / words[0]), *words[1:], "launch.device=cuda", f"launch.machine={machine}", "--json"],
                                 capture_output=True, text=True)
            if run.returncode != 0:
                raise RuntimeError(run.stderr[-400:])
            estimate = json.loads(run.stdout)["estimate"]
            return estimate["seconds"], estimate.get("memory", {}).get("fits")

        try:
            predicted, fits = job.predict(step) if isinstance(job, Megatron) else step(job)
        except RuntimeError as error:
            print(f"failed: {source}: {what}: {error}")
            failed += 1
            continue
        rows.append({"source": source, "what": what, "predicted": predicted, "published": published, "fits": fits})
    factors = {source: math.exp(statistics.mean(math.log(r["published"] / r["predicted"]) for r in rows if r["source"] == source))
               for source in dict.fromkeys(r["source"] for r in rows)}
    print(f"{'predicted':>11s} {'published':>11s} {'error':>8s} {'with factor':>11s}  what")
    for r in rows:
        r["error"] = r["predicted"] / r["published"] - 1
        r["left"] = factors[r["source"]] * r["predicted"] / r["published"] - 1
        print(f"{r['predicted']:9.3f} s {r['published']:9.3f} s {100 * r['error']:+7.1f}% {100 * r['left']:+10.1f}%  {r['source']}: {r['what']}"
              f"{' (does not fit the memory)' if r['fits'] is False else ''}")
    print()
    for source, factor in factors.items():
        own = [r for r in rows if r["source"] == source]
        mean = lambda key: 100 * statistics.mean(abs(r[key]) for r in own)
        print(f"{source}: {len(own)} rows, mean error {mean('error'):.1f} %, with a factor of {factor:.2f} {mean('left'):.1f} %, tau {tau(own):.2f}")
    if a.json:
        json.dump(rows, open(a.json, "w"), indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
