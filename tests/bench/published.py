"""Published training runs of others, compared with the prediction for an equal job from data sheets alone.

  published.py TRAINCTL [--only TEXT] [--json FILE]

Needs no GPU: runs `trainctl plan` for a machine that comes with the program or lies in tests/bench/machines. Prints for each
row the predicted and the published step, the error, and the error with one factor per source (the geometric mean of
published over predicted), which stands for what a source's software reaches and ours does not know; then for each source
that factor, the mean error with and without it, and Kendall's tau of the order.

A source that does not state how many samples a micro-batch has took what was fastest, and so does the prediction: of 1, 2, 4
and 8. Jobs of more micro-batches than a plan may have (a million operations) are predicted with the most and two thirds of
that, and continued in a straight line.

Sources:
  Megatron-LM         Narayanan and others, SC'21, table 1, as in README.md of github.com/NVIDIA/Megatron-LM at de7dc40f (images/
                      cases_april2021.png): GPTs of 2,048 tokens and a vocabulary of 51,200 on A100, each block recomputed; seconds
                      by the paper's equation 3 from teraFLOP/s. Micro-batches and layers a virtual stage: examples/sc21/run_table_1.sh
  torchtitan 2024-06  github.com/pytorch/torchtitan, docs/performance.md: Llama 3 on 64 A100, FSDP2, 8,192 tokens per sample
  torchtitan 2024-12  github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: tables 1 and 3, the rows
                      with torch.compile in bf16; H100 of 2.4 TB/s at 500 W, 400 Gb/s a GPU
  torchtitan 2025-06  github.com/pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md: its bf16 rows of "vanilla TP", on the same
                      hosts; FSDP over the ranks that hold the same part of each product
  selective           Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models", 2022, table 5 with the sizes of
                      table 3: GPTs of 2,048 tokens on 8 to 512 A100, iteration times with each block recomputed, and with their
                      sequence parallelism and the core of attention recomputed; 175B and 530B in 3 chunks per stage. The table's
                      model FLOPs utilization follows from these times and sizes by their equation 9, within 0.4 %.
  BLOOM               github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: the plans of 02-25 for one
                      job, 72 blocks of 14,336, 64 heads, a vocabulary of 250k, samples of 2,048 tokens on 384 A100, each block recomputed,
                      optimizer_shard 1; the second of two runs of one plan is left out. Sources by the samples of a step: 2,048, 2,016, 1,568
  vTrain              github.com/VIA-Research/vTrain, data/ground_truth_multi.csv (Bang and others, MICRO 2024): Megatron-LM's GPTs on A100
                      hosts with four 200 Gb/s cards, each block recomputed, 1f1b; of each job and way to cut it (tensor, data, stages) the
                      micro-batch that was the fastest of those measured
  nanotron            huggingface.co/nanotron/old_bench, llama-1B/{8,16,64}_GPUS/*/log_metrics.csv, of July 2024: the median of steps 8 to 12, which no
                      profiler slows (1,024 samples of 4,096 tokens). Sizes and settings: github.com/huggingface/bench_cluster at aef070f, create_configs.py and
                      template/base_config.py: 24 layers of 2,048, 32 heads, hidden 4,096, norms by rows of the sequence, optimizer_shard 1, 1f1b.
                      The vocabulary has 7 words more here, so that 8 divides it, and the head is a weight of its own
  Llama 3             Llama team, "The Llama 3 Herd of Models", 2024 (arXiv 2407.21783), table 4 with the sizes of table 3: 405B on 8,192 and 16,384 H100.
                      Seconds by TFLOP/s per GPU, counted as Chowdhery and others count ("PaLM"), whom the paper cites for it: a token takes 6 a
                      parameter and 12 * layers * width * length; with causal attention counted the steps would be 4 % shorter. Runs of one
                      block follow from section 3.3.2 (the first run has only the embedding, the last only the head), as does that weights are gathered
                      once a step, and that gradients of micro-batches are added in fp32 before they are summed over ranks, which is
                      optimizer_shard 1 here. It checkpoints no activations and fits into 80 GB; so does this job only with the template's short
                      list (norms with their gathers, and the gates). A micro-batch is one sample
  NVIDIA 2025         github.com/NVIDIA/dgxc-benchmarking, bf16: nemo_megatron/README_175b.md at 8f5cbb37 (v25.02), nemotron/README.md and launch.sh at 741c8860
                      (v25.04): plans and seconds of the least and the most H100. Norms by rows of the sequence, optimizer_shard 1

Megatron-LM, selective, BLOOM and vTrain run Megatron-LM's attention as it was then, jobs/megatron_gpt.yaml, and sum gradients once, after
the last backward pass. That their ranks wait for each message between stages is not expressed.

Not expressed: fp8 with one scale a tensor; context parallelism, and so Llama 3's third row (131,072 tokens) and NVIDIA's Llama 3.1; "selective op" recompute
(every second product: the template's own list stands for it); PyTorch's DDP, which overlapped the sums of the first four rows of
Megatron-LM's table with their backward pass; products that overlap with the gathers of their own operands (torchtitan's async TP, NVIDIA's
recipes); nanotron's messages, at each of which both hosts wait for their GPUs.
"""
import argparse, functools, itertools, json, math, pathlib, statistics, subprocess, sys, time

root = pathlib.Path(__file__).resolve().parent.parent.parent
machines = root / "tests/bench/machines"


def llama(layers, d, hidden, heads, kv_heads, length, vocab, batch, ranks, *more):
    return ["templates/llama.yaml", f"vars.layers={layers}", f"vars.d={d}", f"vars.hidden={hidden}", f"vars.heads={heads}", f"vars.kv_heads={kv_heads}",
            f"vars.length={length}", f"vars.vocab={vocab}", f"dataset.batch={batch}", f"launch.ranks={ranks}", *more]


def cut(dp, tp, wide=("qkv", "gate", "up"), norms=("norm1", "norm2"), others=(), table="table"):
    """Megatron's cuts of a block's products, and its norms, residuals and others by rows of the sequence."""
    widely, narrowly, rows = f"[[{dp},1,1],[{tp},1]]", f"[[{dp},1,{tp}],[1,{tp}]]", f"[{dp},{tp},1]"
    cuts = [*(f"h.*.{name}: {widely}" for name in wide), *(f"h.*.{name}: {narrowly}" for name in ("proj", "down")),
            *(f"h.*.{name}: [{rows}]" for name in (*norms, *others)), *(f"h.*.{name}: [{rows},{rows}]" for name in ("sum1", "sum2")),
            f"{table}: [[{dp},1],[{tp},1]]", f"head: {widely}"]
    return f"parallel.strategies={{{', '.join(cuts)}}}"


def fsdp(size, batch, ranks, recompute, tp=1):
    sizes = {"8B": (32, 4096, 14336, 32), "70B": (80, 8192, 28672, 64)}[size]
    block = ("norm1", "qkv", "turn", "attn", "proj", "sum1", "norm2", "gate", "act", "up", "gated", "down")  # what a block gives on is kept
    lists = {"layer": [f"h.{i}.{name}" for i in range(0, sizes[0], 2) for name in block], "full": [f"h.*.{name}" for name in block], "op": None}[recompute]
    return llama(*sizes, 8, 8192, 128256, batch, ranks, *([cut(ranks // tp, tp)] if tp > 1 else ["parallel.mode=data_parallel"]), "parallel.optimizer_shard.level=3",
                 *([f"parallel.recompute={json.dumps(lists)}"] if lists else []))


def llama3(dp, micro_batches):
    """Llama 3 405B: 16 stages of 8 runs of one block; the first run is the table, the last the head."""
    stages = ", ".join(["table: 0", *(f"h.{i}.*: {i + 1}" for i in range(126)), "norm: 127", "head: 127"])
    return llama(126, 16384, 53248, 128, 8, 8192, 128256, dp * micro_batches, 128 * dp, "parallel.stages=16", "parallel.chunks=8", "parallel.schedule=interleaved_1f1b",
                 f"parallel.micro_batches={micro_batches}", f"parallel.stage_config={{{stages}}}", "parallel.optimizer_shard.level=1", cut(dp, 8))


def nanotron(dp, tp, pp, micro):
    """A stage ends with the block that brings the sum of weights beyond its share, as build_model of nanotron has it."""
    block = 4 * 2048**2 + 3 * 4096 * 2048
    stages = ", ".join([*(f"h.{i}.*: {int(i * block * pp / (24 * block + 50257 * 2048))}" for i in range(24)), f"norm: {pp - 1}", f"head: {pp - 1}"])
    return llama(24, 2048, 4096, 32, 32, 4096, 50264, 1024, dp * tp * pp, f"parallel.stages={pp}", f"parallel.micro_batches={1024 // (dp * micro)}",
                 *([f"parallel.stage_config={{{stages}}}"] if pp > 1 else []), "parallel.optimizer_shard.level=1", "parallel.recompute=[]", cut(dp, tp))


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
            most = 10**6 // (74 * self.layers + 14)  # a step has a million operations at most, and a block 74
            if count <= most:
                found.append(step(self.job(micro, count)))
                continue
            more, few = (n - n % self.pp if self.chunks > 1 else n for n in (most, 2 * most // 3))
            (a, _), (b, fits) = step(self.job(micro, few)), step(self.job(micro, more))
            found.append((a + (b - a) * (count - few) / (more - few), fits))
        return min(found, key=lambda f: (f[1] is False, f[0]))


def nemo(name, layers, d, heads, tp, pp, chunks, ranks, batch, micro, *more):
    """A GPT or Nemotron of NVIDIA's recipes, as jobs/NAME.yaml says."""
    dp = ranks // tp // pp
    wide, others = ("qkv", "up"), ("drop1", "drop2") if name == "nemo_gpt" else ()
    stages = ", ".join(f"h.{i}.*: {i * pp * chunks // layers}" for i in range(layers))
    return [f"tests/bench/jobs/{name}.yaml", f"vars.layers={layers}", f"vars.d={d}", f"vars.heads={heads}", f"dataset.batch={batch}", f"launch.ranks={ranks}",
            f"parallel.stages={pp}", f"parallel.micro_batches={batch // dp // micro}", "parallel.optimizer_shard.level=1", cut(dp, tp, wide, ("ln1", "ln2"), others, "wte"),
            *([f"parallel.chunks={chunks}", "parallel.schedule=interleaved_1f1b", f"parallel.stage_config={{{stages}}}"] if chunks > 1 else []), *more]


SELECTIVE = [(f"{size}, {ranks} A100, {what}", Megatron(layers, d, heads, 8, pp, ranks, batch, micro, chunks, again=again), seconds)
             for size, layers, d, heads, pp, ranks, batch, micro, chunks, blocks, selective in (
                 ("22B", 48, 6144, 64, 1, 8, 4, 4, 1, 1.42, 1.10), ("175B", 96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75),
                 ("530B", 105, 20480, 128, 35, 280, 280, 1, 3, 49.05, 37.83), ("1T", 128, 25600, 160, 64, 512, 512, 1, 1, 94.42, 71.49))
             for what, again, seconds in (("each block again", "blocks", blocks), ("attention again, rows cut", "attention", selective))]
BLOOM = [("BLOOM" if batch == 2048 else f"BLOOM {batch}", f"181B, {batch} samples, 384 A100: data {384 // tp // pp}, tensor {tp}, stages {pp}, micro-batch {micro}",
          Megatron(72, 14336, 64, tp, pp, 384, batch, micro, vocab=250880, level=1), seconds)
         for batch, rows in ((2048, ((8, 6, 4, 114.11), (8, 12, 4, 117.07), (8, 12, 2, 128.82), (4, 12, 4, 111.89), (4, 12, 2, 110.48), (4, 6, 4, 117.11),
                                     (4, 6, 2, 111.71), (2, 12, 2, 112.50), (2, 24, 1, 119.53), (2, 24, 2, 122.75), (4, 24, 1, 130.60))),
                             (2016, ((8, 6, 6, 123.57), (8, 8, 4, 113.16), (8, 4, 2, 125.52), (8, 4, 4, 114.81), (8, 2, 1, 145.45), (8, 2, 2, 136.13))),
                             (1568, ((8, 6, 4, 113.01), (8, 12, 4, 92.75), (8, 12, 2, 99.93))))
         for tp, pp, micro, seconds in rows]
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
tokens = lambda samples, per_second: samples * 8192 / per_second  # a GPU's samples, and its tokens per second
MEGATRON = [(Megatron(24, 2304, 24, 1, 1, 32, 512, 16), 137), (Megatron(30, 3072, 32, 2, 1, 64, 512, 16), 138),
            (Megatron(36, 4096, 32, 4, 1, 128, 512, 16), 142), (Megatron(40, 6144, 48, 8, 1, 256, 1024, 8), 135),
            (Megatron(48, 8192, 64, 8, 2, 512, 1536, 4), 138), (Megatron(60, 10240, 80, 8, 4, 1024, 1792, 2, 3), 140),
            (Megatron(80, 12288, 96, 8, 8, 1536, 2304, 2, 2), 148), (Megatron(96, 16384, 128, 8, 16, 1920, 2160, 1, 2), 155),
            (Megatron(105, 20480, 128, 8, 35, 2520, 2520, 1, 3), 163), (Megatron(128, 25600, 160, 8, 64, 3072, 3072, 1), 163)]
LLAMA3 = 2048 * 8192 * (6 * 405e9 + 12 * 126 * 16384 * 8192)  # operations of a step: 2,048 samples of 8,192 tokens
ROWS = [  # source, what, machine, job, published seconds
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, every second block again", "a100x8", fsdp("8B", 64, 64, "layer"), tokens(1, 2904)),
    ("torchtitan 2024-06", "Llama 3 8B, 64 A100, some products again", "a100x8", fsdp("8B", 64, 64, "op"), tokens(1, 2973)),
    ("torchtitan 2024-06", "Llama 3 70B, 64 A100, every block again", "a100x8", fsdp("70B", 64, 64, "full"), tokens(1, 331)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 8 H100", machines / "grand_teton.json", fsdp("8B", 16, 8, "op"), tokens(2, 6667)),
    ("torchtitan 2024-12", "Llama 3.1 8B, 128 H100", machines / "grand_teton.json", fsdp("8B", 256, 128, "op"), tokens(2, 6514)),
    ("torchtitan 2025-06", "Llama 3.1 8B, 64 H100: data 8, tensor 8", machines / "grand_teton.json", fsdp("8B", 96, 64, "op", 8), tokens(12 / 8, 4378)),
    ("torchtitan 2025-06", "Llama 3 70B, 256 H100: data 32, tensor 8, every block again", machines / "grand_teton.json", fsdp("70B", 512, 256, "full", 8), tokens(16 / 8, 597.3)),
    *(("Megatron-LM", f"{m.layers} blocks of {m.d}, {m.ranks} A100: tensor {m.tp}, stages {m.pp}", "a100x8", m, m.seconds(teraflops)) for m, teraflops in MEGATRON),
    *(("selective", what, "a100x8", m, seconds) for what, m, seconds in SELECTIVE),
    *((source, what, machines / "jean_zay.json", m, seconds) for source, what, m, seconds in BLOOM),
    *(("vTrain " + what.split(",")[0], what, machines / "vtrain.json", m, seconds) for what, m, seconds in VTRAIN),
    *((f"nanotron {dp * tp * pp}", f"Llama 1B, {dp * tp * pp} H100: data {dp}, tensor {tp}, stages {pp}, micro-batch {micro}", "h100x8", nanotron(dp, tp, pp, micro), seconds)
      for dp, tp, pp, micro, seconds in ((4, 2, 1, 8, 15.8), (2, 4, 1, 8, 18.8), (1, 8, 1, 8, 26.2), (1, 8, 1, 32, 92.1), (1, 4, 2, 8, 20.3), (2, 1, 4, 4, 22.0),
                                         (2, 1, 4, 2, 22.4), (1, 2, 4, 4, 23.6), (1, 1, 8, 4, 29.2), (2, 2, 2, 1, 46.8),
                                         (4, 4, 1, 16, 10.4), (1, 8, 2, 8, 18.2), (1, 4, 4, 4, 17.6), (2, 1, 8, 4, 28.1), (1, 2, 8, 8, 55.0), (1, 2, 8, 2, 62.8),
                                         (16, 4, 1, 4, 2.85), (16, 4, 1, 2, 4.80))),
    *(("Llama 3", f"405B, {128 * dp} H100: data {dp}, tensor 8, stages 16", "h100x8", llama3(dp, micro_batches), LLAMA3 / (128 * dp * teraflops * 1e12))
      for dp, micro_batches, teraflops in ((64, 32, 430), (128, 16, 400))),
    *(("NVIDIA 2025", f"GPT-3 175B, {ranks} H100: tensor 4, stages 8", "h100x8", nemo("nemo_gpt", 96, 12288, 96, 4, 8, 12, ranks, 2 * ranks, 1), seconds)
      for ranks, seconds in ((128, 8.309), (2048, 8.49))),
    *(("NVIDIA 2025", f"Nemotron-4 15B, {ranks} H100: tensor 2", "h100x8", nemo("nemotron", 32, 6144, 48, 2, 1, 1, ranks, 4 * ranks, 2), seconds)
      for ranks, seconds in ((16, 2.66), (2048, 2.78))),
    *(("NVIDIA 2025", f"Nemotron-4 340B, {ranks} H100: tensor 8, stages 8", "h100x8", nemo("nemotron", 96, 18432, 96, 8, 8, 12, ranks, ranks // 4, 1), seconds)
      for ranks, seconds in ((256, 4.36), (2048, 4.43))),
]


def tau(rows):
    pairs = [(a["published"] - b["published"]) * (a["predicted"] - b["predicted"]) for a, b in itertools.combinations(rows, 2)]
    return sum(1 if p > 0 else -1 for p in pairs) / len(pairs) if pairs else 1.0


@functools.cache
def plan(trainctl, machine, words):
    """Seconds of a step, and whether it fits."""
    run = subprocess.run([trainctl, "plan", str(root / words[0]), *words[1:], "launch.device=cuda", f"launch.machine={machine}", "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr[-400:])
    estimate = json.loads(run.stdout)["estimate"]
    return estimate["seconds"], estimate.get("memory", {}).get("fits")


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

        begin, step = time.monotonic(), lambda words: plan(a.trainctl, str(machine), tuple(words))
        try:
            predicted, fits = job.predict(step) if isinstance(job, Megatron) else step(job)
        except RuntimeError as error:
            print(f"failed: {source}: {what}: {error}")
            failed += 1
            continue
        rows.append({"source": source, "what": what, "predicted": predicted, "published": published, "fits": fits})
        print(f"{source}: {what}: {predicted:.3f} s, found in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
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
