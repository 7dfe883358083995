#!/usr/bin/env python3
"""follow.py TRAINCTL DUMP_JOB: runs jobs of tests/jobs under plans of several ranks, and compares the loss of every step
with that of JAX (reference.py). Exit code 77: there is no JAX."""

import functools
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / folder) for folder in ("jobs", "random_jobs")]

from reference import jax, reference_losses  # first: where JAX is missing it starts this program again, or ends it
from jobs import job_file
from runs import difference, run_losses

TOLERANCE = 5e-6  # of the largest loss so far; 3e-7 was seen
NESTEROV = "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, nesterov: true, weight_decay: 0.001}"
CLIPPED = "optimizer={type: sgd, learning_rate: {type: cosine, base: 0.05, warmup_steps: 10}, momentum: 0.9, clip_norm: 0.3}"
ADAM_DECAY = "optimizer={type: adam, learning_rate: 0.001, weight_decay: 0.01}"
STEPS = "optimizer={type: adamw, learning_rate: {type: step, base: 0.002, step_size: 20, gamma: 0.5}, weight_decay: 0.05, clip_norm: 0.5}"
SMOOTH = "loss={type: softmax_cross_entropy, label_smoothing: 0.1, ignore_index: 3}"
IGNORED = "loss={type: softmax_cross_entropy, ignore_index: 5}"
LORA = "adapters={lora: {layers: ['h.*.qkv', 'h.*.down', head], rank: 4, alpha: 8, dropout: 0.1}}"
TWO, FOUR = "parallel.micro_batches=2", "parallel.micro_batches=4"


def data_parallel(ranks, level=0):
    return [f"launch.ranks={ranks}", "parallel.mode=data_parallel", f"parallel.optimizer_shard={{level: {level}, min_kb: 0}}"]


def cut(ranks, strategies="{}", stages=1):
    return [f"launch.ranks={ranks}", "parallel.mode=semi_auto_parallel", f"parallel.stages={stages}", f"parallel.strategies={strategies}"]


def megatron(ways, columns, more):
    """Blocks of gpt or llama as Megatron cuts them; `more` strategies after those."""
    cuts = [f"h.*.{layer}: [[1, 1, 1], [{ways}, 1]]" for layer in columns]
    cuts += [f"h.*.{layer}: [[1, 1, {ways}], [1, {ways}]]" for layer in ("proj", "down")]
    return "{" + ", ".join([*cuts, more]) + "}"


def own_statistics(name):
    """The job, but each rank normalises over its own rows in batch_norm layers, as under PyTorch's DDP."""
    path = pathlib.Path(SCRATCH.name) / f"{name}.yaml"
    path.write_text(job_file(name).read_text().replace("type: batch_norm", "type: batch_norm, sync: false"))
    return path


SCRATCH = tempfile.TemporaryDirectory(prefix="trainctl-jax-")
# JAX compiles a step of two micro-batches as two steps. Where only the loss of the whole batch depends on the batch, micro-batches
# are a part of the plan, and several plans share the losses of JAX.
# A case: the job; overrides for trainctl and JAX; overrides for trainctl (the plan of several ranks); then, only if the
# job that JAX runs on one rank is another one, its name and its overrides.
CASES = [
    ("mlp", [], ["launch.ranks=1"]),
    ("mlp", [NESTEROV], data_parallel(4)),
    ("mlp", [CLIPPED, FOUR], cut(8, "{layer1: [[2, 1], [2, 1]], layer2: [[2, 1], [2, 1]]}", 2)),
    ("mlp", [ADAM_DECAY, "loss=mse"], data_parallel(3, 3)),
    ("odd", [], cut(6, "{a: [[2, 1], [3, 1]], b: [[2, 3], [3, 1]]}")),
    ("classifier", [], data_parallel(4, 2)),
    ("classifier", [CLIPPED, TWO], cut(4, "{fc1: [[1, 1], [2, 1]]}", 2)),
    ("classifier", [STEPS, "parallel.micro_batches=3"], data_parallel(8, 3)),
    ("batch_norm", [TWO], data_parallel(3, 1)),
    ("batch_norm", [ADAM_DECAY], cut(4, "{fc1: [[2, 1], [2, 1]], bn1: [[1, 4]]}")),
    ("convnet", [TWO], data_parallel(3, 2)),
    ("convnet", [], cut(4, "{conv1: [[2, 1, 1, 1], [2, 1, 1, 1]], depthwise: [[2, 2, 1, 1], [2, 1, 1, 1]]}")),
    ("language", [], [TWO, *cut(6, stages=2)]),
    ("language", [CLIPPED], cut(4, "{embed: [[2, 1], [2, 1]], fc1: [[2, 1, 1], [2, 1]]}")),
    ("attention", [], cut(4, "{q: [[2, 1, 1], [2, 1]], k: [[2, 1, 1], [2, 1]], v: [[1, 1, 1], [4, 1]], out: [[2, 2], [1, 2]]}")),
    ("heads", [], cut(4, "{qkv: [[2, 1, 1], [2, 1]], turned: [[2, 1, 2]], mixed: [[2, 1, 2]], cross: [[1, 2, 2], [1, 1, 2], [1, 1, 2]]}")),
    ("transformer", [TWO], cut(2, "{'h.*.ln?': [[1, 2, 1]], h.*.q: [[1, 1, 1], [2, 1]], h.*.k: [[1, 1, 1], [2, 1]], h.*.v: [[1, 1, 1], [2, 1]], h.*.proj: [[1, 1, 2], [1, 2]], h.*.fc1: [[1, 1, 1], [2, 1]], h.*.fc2: [[1, 1, 2], [1, 2]]}")),
    ("norms", ["train.epochs=2", TWO], cut(6, stages=3)),
    ("functions", [], data_parallel(3)),
    ("functions", ["loss=binary_cross_entropy", TWO], cut(4, "{fc1: [[1, 1], [4, 1]], fc3: [[1, 2], [2, 2]]}")),
    ("classifier", [SMOOTH, "optimizer={type: sgd, learning_rate: 0.05}"], [*data_parallel(4), "parallel.micro_batches=3"]),
    ("language", [IGNORED, "optimizer={type: sgd, learning_rate: 0.1}", TWO], cut(6, "{loss: [[2, 3, 1], [2, 3]]}")),
    ("shapes", [], data_parallel(4, 1)),
    ("shapes", [TWO], cut(6, "{gn: [[2, 3, 1]], wide: [[1, 3, 2]], fc: [[1, 3, 2], [1, 2]], edge: [[2, 3, 1]], gate: [[1, 1, 3], [1, 1, 3]], top: [[2, 1, 3]]}")),
    ("shapes", [CLIPPED], cut(6, "{position: [[1, 3, 2]], wide: [[2, 3, 1]], bn: [[2, 1, 3]], left: [[2, 1, 3]], middle: [[2, 3, 1, 1]]}")),
    ("shapes", [TWO, STEPS], cut(4, "{fc: [[1, 1, 2], [1, 2]], left: [[1, 1, 2]], right: [[2, 1, 1]]}", 2)),
    ("lenet", [], data_parallel(2, 2)),
    ("lenet", [], [TWO, *cut(6, "{conv2: [[2, 3, 1, 1], [1, 3, 1, 1]], fc1: [[1, 1], [6, 1]], fc2: [[1, 6], [1, 6]]}")]),
    ("resnet", [], ["launch.ranks=1"]),
    ("resnet", [TWO], cut(8, "{'*.bn': [[2, 2, 1, 1]]}", 2)),
    ("gpt", [], ["launch.ranks=1"]),
    ("gpt", [], [TWO, *cut(4, megatron(2, ["qkv", "up"], "wte: [[1, 1], [2, 1]], head: [[1, 1, 1], [2, 1]]"), 2), "parallel.recompute=['h.*']"]),
    ("llama", [], ["launch.ranks=1"]),
    ("llama", [], cut(3, megatron(3, ["qkv", "gate", "up"], "'h.*.norm?': [[1, 3, 1]], norm: [[1, 3, 1]]"))),
    ("gemma", [], ["launch.ranks=1"]),
    ("moe", [], ["launch.ranks=1"]),
    ("moe", [], cut(4, "{'moe_?': [[1, 1, 1], [1, 1], [4, 1, 1, 1], [4, 1, 1]]}")),
    ("moe", [], [TWO, *cut(8, "{'moe_?': [[2, 1, 1], [1, 1], [1, 1, 2, 1], [1, 1, 2]]}", 2)]),
    ("balance", [], ["launch.ranks=1"]),
    ("balance", [], cut(4, "{'moe_?': [[1, 1, 1], [1, 1], [4, 1, 1, 1], [4, 1, 1]]}")),
    ("balance", [TWO], [*cut(8, "{}", 2), "parallel.expert=2"]),
    ("gemma", [], [TWO, *cut(6, "{'*.attn': [[1, 2, 3], [1, 1, 3], [1, 1, 3]], '*.norm?': [[1, 3, 1]]}")]),
    ("documents", [], ["launch.ranks=1"]),
    ("documents", [], [TWO, *cut(4, "{mixed: [[2, 1, 2], [2, 1]], cross: [[1, 2, 2], [1, 1, 2], [1, 1, 2], [1, 1]]}")]),
    ("gpt", [LORA], ["launch.ranks=1"]),
    ("gpt", [LORA], [TWO, *cut(4, megatron(2, ["qkv", "up"], "wte: [[1, 1], [2, 1]], head: [[1, 1, 1], [2, 1]]"), 2), "parallel.recompute=['h.*']"]),
    ("classifier", ["train.freeze=['fc1.*', 'fc2.bias']", CLIPPED], data_parallel(4, 2)),
    ("one_hot", [], cut(4, "{fc1: [[1, 1, 4], [1, 4]]}")),
    ("hybrid_tensor_parallel", [TWO], [], "mlp_without_bias2"),
    ("hybrid_gather_scatter", [], [], "mlp_without_bias3"),
    # Without sync, each micro-batch of one rank has separate statistics, as each rank has.
    (own_statistics("batch_norm"), [], data_parallel(2), "batch_norm", [TWO]),
    (own_statistics("batch_norm"), [ADAM_DECAY], [*data_parallel(3, 2), TWO], "batch_norm", ["parallel.micro_batches=6"]),
]


def main():
    trainctl, dump_job = sys.argv[1:]
    failed = 0
    losses_of = functools.cache(reference_losses)
    for name, both, plan, *one_rank in CASES:
        path = name if isinstance(name, pathlib.Path) else job_file(name)
        ours = run_losses(trainctl, path, both + plan + ["launch.device=cpu"])
        of_one_rank = one_rank[1] if len(one_rank) > 1 else []
        theirs = losses_of(dump_job, job_file(one_rank[0]) if one_rank else path, (*both, *of_one_rank, "launch.ranks=1"))
        assert len(ours) >= 20 and sorted(ours) == sorted(theirs), f"{path.stem}: {len(ours)} steps, JAX has {len(theirs)}"
        worst, at = difference(ours, theirs, sorted(theirs))
        failed += not worst < TOLERANCE
        print(f"{'ok  ' if worst < TOLERANCE else 'FAIL'} {path.stem} {' '.join(both + plan)}: {len(ours)} steps, loss {ours[1]:.5f} to "
              f"{ours[max(ours)]:.5f}, largest difference {worst:.1e} at step {at}, allowed {TOLERANCE:.0e}", flush=True)
    print(f"JAX {jax.__version__}: {len(CASES) - failed} of {len(CASES)} jobs follow it")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
