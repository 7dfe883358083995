"""Runs of one job that share an autotune cache have the same bits, process after process.

    repeats.py TRAINCTL [one] [two]          about 2 minutes per part: on one GPU, on two GPUs

Runs each job four times with train.fingerprints=1 and compares the runs with `trainctl diff`. The first run measures the
algorithms of products and keeps them, the others read them. REPEATS_DEVICE=cpu checks the script itself on a
machine without a GPU.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

TRAINCTL = os.path.abspath(sys.argv[1])
PARTS = sys.argv[2:] or ["one", "two"]
DEVICE = os.environ.get("REPEATS_DEVICE", "cuda")
RUNS, STEPS = 4, 6
OFF = {"TRAINCTL_SMALL_STEP": "off"}
ONE = ["launch.ranks=1", "parallel.mode=stand_alone"]
TWO = ["launch.ranks=2", "parallel.mode=semi_auto_parallel"]
WIDE = ["vars.d=512", "vars.heads=8"]  # products that cuBLASLt computes also with kernels for small steps
JOBS = {
    "one": {
        "fp32, micro-batches": (ONE + ["parallel.micro_batches=4"], {}),
        "fp32, micro-batches, cuBLASLt alone": (ONE + ["parallel.micro_batches=4"], OFF),
        "fp32, recompute": (ONE + ["parallel.micro_batches=4", "parallel.recompute=['h.*']"], {}),
        "fp32, wide": (ONE + WIDE, {}),
        "tf32, wide": (ONE + WIDE + ["precision=tf32"], {}),
        "bf16, wide": (ONE + WIDE + ["precision=bf16"], {}),
    },
    "two": {
        "fp32, data, level 1": (TWO + ["parallel.micro_batches=2", "parallel.optimizer_shard=1"], {}),
        "fp32, data, level 3": (TWO + ["parallel.optimizer_shard=3"], {}),
        "fp32, tensor": (TWO + ["parallel.tensor=2"], {}),
        "fp32, stages": (TWO + ["parallel.stages=2", "parallel.micro_batches=4"], {}),
        "fp32, stages, cuBLASLt alone": (TWO + ["parallel.stages=2", "parallel.micro_batches=4"], OFF),
        "bf16, tensor, wide": (TWO + WIDE + ["parallel.tensor=2", "precision=bf16"], {}),
    },
}


def write_text(folder):
    """A text of which every byte follows from its position."""
    state, letters = 1, []
    for _ in range(1 << 16):
        state = (state * 1103515245 + 12345) % (1 << 31)
        letters.append(chr(97 + (state >> 16) % 26))
    path = folder / "letters.txt"
    path.write_text("".join(letters))
    return path


def run(text, logs, cache, words, environment):
    """Runs the job and returns the folder of the run, or None if it failed."""
    done = subprocess.run([TRAINCTL, "run", "configs/gpt_text.yaml", f"dataset.path={text}", f"train.steps={STEPS}", "train.fingerprints=1",
                           "train.checkpoint=none", f"launch.device={DEVICE}", f"launch.log_dir={logs}", *words],
                          capture_output=True, text=True, env={**os.environ, **environment, "XDG_CACHE_HOME": str(cache)}, check=False)
    if done.returncode != 0:
        print(f"FAILED: {' '.join(words)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}", flush=True)
        return None
    return logs / "1"


def repeats(folder, text, name, words, environment):
    runs = [run(text, folder / f"logs.{i}", folder / "cache", words, environment) for i in range(RUNS)]
    if None in runs:
        return False
    equal = 0
    for other in runs[1:]:
        done = subprocess.run([TRAINCTL, "diff", str(runs[0]), str(other)], capture_output=True, text=True, check=False)
        equal += done.returncode == 0
        if done.returncode != 0:
            print(f"{name}: {other.parent.name} differs from the first run:\n{(done.stdout + done.stderr)[:2000]}", flush=True)
    print(f"{name}: {equal} of {len(runs) - 1} runs have the bits of the first", flush=True)
    return equal == len(runs) - 1


def main():
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        text = write_text(pathlib.Path(temporary))
        for part in PARTS:
            for number, (name, (words, environment)) in enumerate(JOBS[part].items()):
                folder = pathlib.Path(temporary) / f"{part}.{number}"
                folder.mkdir()
                if not repeats(folder, text, name, words, environment):
                    failed.append(f"{part}: {name}")
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


main()
