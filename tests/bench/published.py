"""Trainings that others published, beside what data sheets alone predict of an equal job.

  published.py TRAINCTL [--only TEXT] [--json FILE]

Needs no GPU: runs `trainctl plan` for a machine that comes with the program or lies in tests/bench/machines. Prints for each
row the predicted and the published step, the error, and the error with one factor a source (the geometric mean of
published over predicted), which stands for what a source's software reaches and ours does not know; then for each source
that factor, the mean error with and without it, and Kendall's tau of the order.

A source that does not tell how many samples a micro-batch has took what was fastest, and so does the prediction: of 1, 2, 4
and 8. Jobs of many micro-batches are predicted with two and three for each stage, and continued in a straight line.

Sources:
  Megatron-LM         Narayanan and others, SC'21, table 1, as in README.md of github.com/NVIDIA/Megatron-LM at de7dc40f (images/
                      cases_april2021.png): GPTs of 2,048 tokens and a vocabulary of 51,200 on A100, each block recomputed; seconds
                      by the paper's equation 3 from teraFLOP/s. Micro-batches and layers a virtual stage: examples/sc21/run_table_1.sh
  torchtitan 2024-06  github.com/pytorch/torchtitan, docs/performance.md: Llama 3 on 64 A100, FSDP2, 8,192 tokens a sample
  torchtitan 2024-12  github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: tables 1 and 3, the rows
                      with torch.compile in bf16; H100 of 2.4 TB/s at 500 W, 400 Gb/s a GPU
  selective           Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models", 2022, table 5 with the sizes of
                      table 3: GPTs of 2,048 tokens on 8 to 512 A100, iteration times with each block recomputed, and with their
                      sequence parallelism and the core of attention recomputed; 175B and 530B in 3 chunks a stage. The table's
                      model FLOPs utilization follows from these times and sizes by their equation 9, within 0.4 %.
  BLOOM               github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: the plans of 02-25 for one
                      job, 72 blocks of 14,336, 64 heads, a vocabulary of 250k, 2,048 samples of 2,048 tokens on 384 A100, each block
                      recomputed, optimizer_shard 1; the second of two runs of one plan is left out
  vTrain              github.com/VIA-Research/vTrain, data/ground_truth_multi.csv (Bang and others, MICRO 2024): Megatron-LM's GPTs on A100
                      hosts with four 200 Gb/s cards, each block recomputed, 1f1b; of each job and way to cut it (tensor, data, stages) the
                      micro-batch that was the fastest of those measured
  nanotron            huggingface.co/nanotron/old_bench, llama-1B/8_GPUS/*/log_metrics.csv, the steps after the second: a
                      Llama of 24 layers of 2,048, 16 heads, hidden 4,096, on 1,024 samples of 4,096 tokens. Sizes are those
                      that its figures of operations a token follow from.

All but torchtitan and nanotron run Megatron-LM's attention as it was then, jobs/megatron_gpt.yaml, and sum gradients once, after the last
backward pass. That their ranks wait for each message between stages is not expressed.

Not expressed: fp8; context parallelism; "selective op" recompute (every second product: the template's own list stands for it);
PyTorch's DDP, which overlapped the sums of the first four rows of Megatron-LM's table with their backward pass; nanotron's
messages, whose receiver reads their sizes from the GPU, so that its host waits at each. Llama 3 405B is left out: its paper tells
teraFLOP/s, and neither how it counts them nor its chunks of stages.
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
    """A GPT on so many GPUs, as jobs/megatron_gpt.yaml says; without a micro-batch the fastest one. `again`: what is recomputed,
    "blocks" or "attention"; the latter with norms, dropouts and residuals cut by rows of the sequence. Megatron-LM computes a
    whole block again, with its last product, which nothing reads. So blocks are kept behind their attention here: what is then
    not computed again is the attention's last product, a 48th of the step."""

    def __init__(self, layers, d, heads, tp, pp, ranks, batch, micro=None, chunks=1, vocab=51200, level=0, again="blocks"):
        self.layers, self.d, self.heads, self.tp, self.pp, self.ranks, self.batch = layers, d, heads, tp, pp, ranks, batch
        self.micro, self.chunks, self.vocab, self.level, self.again = micro, chunks, vocab, level, again

    def seconds(self, teraflops):
        s, h, l, v = 2048, self.d, self.layers, 51200
        return 96 * self.batch * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h)) / (self.ranks * teraflops * 1e12)

    def job(self, micro, micro_batches):
        dp = self.ranks // self.tp // self.pp
        wide, narrow = f"[[{dp},1,1],[{self.tp},1]]", f"[[{dp},1,{self.tp}],[1,{self.tp}]]"
        rows = f"[{dp},{self.tp if self.again == 'attention' else 1},1]"
        whole = [*(f"h.*.{name}: [{rows}]" for name in ("ln1", "ln2", "drop1", "drop2")), *(f"h.*.{name}: [{rows},{rows}]" for name in ("sum1", "sum2"))]
        # Between stages each rank sends its part of the rows, and the receivers gather them: Megatron-LM's scatter-gather.
        blocks = self.layers // (self.pp * self.chunks)
        parts = f"[{dp},{self.tp},1]"
        whole += [f"h.{i}.sum2: [{parts},{parts}]" for i in range(blocks - 1, self.layers - 1, blocks)]
        stages = ", ".join(f"h.{i}.*: {i // blocks}" for i in range(self.layers))
        cuts = ", ".join([*(f"h.*.{name}: {wide}" for name in ("q", "k", "v", "up")), *(f"h.*.{name}: {narrow}" for name in ("proj", "down")), *whole,
                          f"wte: [[{dp},1],[{self.tp},1]]", f"head: {wide}"])
        core = ["scores", "probs", "kept"]
        block = ["ln2", "up", "act", "down", "drop2", "sum2", "ln1", *(f"{name}{part}" for name in "qkv" for part in ("", "_apart", "_heads")), *core,
                 "mixed", "joined", "flat"]
        again = [f"h.*.{name}" for name in (core if self.again == "attention" else block)]
        chunks = [f"parallel.chunks={self.chunks}", "parallel.schedule=interleaved_1f1b"] if self.chunks > 1 else []
        return ["tests/bench/jobs/megatron_gpt.yaml", f"vars.layers={self.layers}", f"vars.d={self.d}", f"vars.heads={self.heads}", f"vars.vocab={self.vocab}",
                f"dataset.batch={dp * micro * micro_batches}", f"launch.ranks={self.ranks}", f"parallel.stages={self.pp}",
                f"parallel.micro_batches={micro_batches}", f"parallel.strategies={{{cuts}}}", f"parallel.recompute={json.dumps(again)}", *([f"parallel.stage_config={{{stages}}}"] if self.pp > 1 else []),
                f"parallel.optimizer_shard.level={self.level}", "parallel.bucket_bytes=1TB", *chunks]  # one sum, after the last backward pass

    def predict(self, step):
        """Seconds, and whether it fits, of the fastest micro-batch that fits."""
        found = []
        for micro in (self.micro,) if self.micro else (1, 2, 4, 8):
            count, left = divmod(self.batch, self.ranks // self.tp // self.pp * micro)
            if left or count < self.pp:
                continue
            few, more = (2 * self.pp, 3 * self.pp) if self.pp < 64 else (self.pp, 3 * self.pp // 2)  # a step has a million operations at most
            if count <= more:
                found.append(step(self.job(micro, count)))
                continue
            (a, fits), (b, _) = step(self.job(micro, few)), step(self.job(micro, more))
            found.append((a + (b - a) * (count - few) / (more - few), fits))
        return min(found, key=lambda f: (f[1] is False, f[0]))


SELECTIVE = [(f"{size}, {ranks} A100, {what}", Megatron(layers, d, heads, 8, pp, ranks, batch, micro, chunks, again=again), seconds)
             for size, layers, d, heads, pp, ranks, batch, micro, chunks, blocks, selective in (
                 ("22B", 48, 6144, 64, 1, 8, 4, 4, 1, 1.42, 1.10), ("175B", 96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75),
                 ("530B", 105, 20480, 128, 35, 280, 280, 1, 3, 49.05, 37.83), ("1T", 128, 25600, 160, 64, 512, 512, 1, 1, 94.42, 71.49))
             for what, again, seconds in (("each block again", "blocks", blocks), ("attention again, rows cut", "attention", selective))]
BLOOM = [(f"181B, 384 A100: data {dp}, tensor {tp}, stages {pp}, micro-batch {micro}",
          Megatron(72, 14336, 64, tp, pp, 384, 2048, micro, vocab=250880, level=1), seconds)
         for dp, tp, pp, micro, seconds in ((8, 8, 6, 4, 114.11), (4, 8, 12, 4, 117.07), (4, 8, 12, 2, 128.82), (8, 4, 12, 4, 111.89), (8, 4, 12, 2, 110.48),
                                            (16, 4, 6, 4, 117.11), (16, 4, 6, 2, 111.71), (16, 2, 12, 2, 112.50), (8, 2, 24, 1, 119.53),
                                            (8, 2, 24, 2, 122.75), (4, 4, 24, 1, 130.60))]
VTRAIN = [(f"{size}, {ranks} A100: data {dp}, tensor {tp}, stages {pp}, micro-batch {micro}", Megatron(layers, d, heads, tp, pp, ranks, batch, micro), ms / 1e3)
          for size, layers, d, heads, ranks, batch, rows in (
              ("3.6B", 30, 3072, 32, 64, 512, ((1, 64, 1, 8, 3566.5), (2, 32, 1, 16, 3937.5), (4, 16, 1, 16, 4492.1), (1, 32, 2, 2, 4034.9),
                                               (8, 8, 1, 32, 4972.3), (16, 4, 1, 32, 10580.6))),
              ("18.4B", 40, 6144, 48, 256, 1024, ((8, 32, 1, 8, 9603.6), (4, 32, 2, 2, 10031.6), (2, 32, 4, 4, 10825), (1, 32, 8, 4, 12379), (8, 16, 2, 2, 10434.8),
                                                  (8, 8, 4, 2, 10926.4), (8, 4, 8, 8, 11026.1), (2, 16, 8, 8, 13157.5), (16, 16, 1, 2, 20414.8))),
              ("39.1B", 48, 8192, 64, 512, 1536, ((2, 32, 8, 3, 19067.2), (4, 32, 4, 2, 13875.5), (2, 16, 16, 2, 23747.9), (4, 16, 8, 2, 16070.6),
                                                  (4, 8, 16, 2, 14529.6), (8, 32, 2, 2, 14614), (8, 16, 4, 2, 14713.4), (8, 8, 8, 4, 14967.1),
                                                  (1, 32, 16, 3, 19991), (8, 4, 16, 2, 15639.4))),
              ("175B", 96, 12288, 96, 512, 1536, ((4, 8, 16, 2, 54255.9), (4, 4, 32, 2, 53909.6), (2, 8, 32, 2, 57411.2), (8, 8, 8, 2, 55109.6),
                                                  (8, 4, 16, 3, 55677.5), (8, 2, 32, 3, 57324.4))))
          for tp, dp, pp, micro, ms in rows]
tokens = lambda samples, per_second: samples * 8192 / per_second  # a GPU's samples, and its tokens a second
MEGATRON = [(Megatron(24, 2304, 24, 1, 1, 32, 512, 16), 137), (Megatron(30, 3072, 32, 2, 1, 64, 512, 16), 138),
            (Megatron(36, 4096, 32, 4, 1, 128, 512, 16), 142), (Megatron(40, 6144, 48, 8, 1, 256, 1024, 8), 135),
            (Megatron(48, 8192, 64, 8, 2, 512, 1536, 4), 138), (Megatron(60, 10240, 80, 8, 4, 1024, 1792, 2, 3), 140),
            (Megatron(80, 12288, 96, 8, 8, 1536, 2304, 2, 2), 148), (Megatron(96, 16384, 128, 8, 16, 1920, 2160, 1, 2), 155),
            (Megatron(105, 20480, 128, 8, 35, 2520, 2520, 1, 3), 163), (Megatron(128, 25600, 160, 8, 64, 3072, 3072, 1), 163)]
ROWS = [  # source, what, machine, job, published seconds
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, every second block again", "a100x8", fsdp("8B", 64, 64, "layer"), tokens(1, 2904)),
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, some products again", "a100x8", fsdp("8B", 64, 64, "op"), tokens(1, 2973)),
    ("torchtitan 2024-06", "Llama 3 70B, 64 A100, every block again", "a100x8", fsdp("70B", 64, 64, "full"), tokens(1, 331)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 8 H100", machines / "grand_teton.json", fsdp("8B", 16, 8, "op"), tokens(2, 6667)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 128 H100", machines / "grand_teton.json", fsdp("8B", 256, 128, "op"), tokens(2, 6514)),
    *(("Megatron-LM", f"{m.layers} blocks of {m.d}, {m.ranks} A100: tensor {m.tp}, stages {m.pp}", "a100x8", m, m.seconds(teraflops)) for m, teraflops in MEGATRON),
    *(("selective", what, "a100x8", m, seconds) for what, m, seconds in SELECTIVE),
    *(("BLOOM", what, machines / "jean_zay.json", m, seconds) for what, m, seconds in BLOOM),
    *(("vTrain " + what.split(",")[0], what, machines / "vtrain.json", m, seconds) for what, m, seconds in VTRAIN),
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
