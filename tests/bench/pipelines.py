"""Pipelines on GPUs of one host: the step time of each schedule next to the time that the schedule implies.

    python3 tests/bench/pipelines.py TRAINCTL [--stages 2] [--rounds 1] [--device cuda] [FIELD=VALUE ...]

The job is tests/bench/jobs/gpt_stages.yaml: GPT-2 1558M, 64 samples in 16 micro-batches. First each GPU trains the whole job alone, all at once, because
GPUs slow down when their neighbors are warm. With S stages, a step should then take a share 1/S of that time, and the idle share of its schedule on top.
Further fields change the job. On CPUs: --device cpu precision=fp32 vars.layers=4 vars.heads=4 vars.d=64 vars.length=32 vars.vocab=512
dataset.classes=500."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

JOB = pathlib.Path(__file__).resolve().parent / "jobs/gpt_stages.yaml"
MICRO_BATCHES = 16
WARM = 6  # steps that are not counted; nor is the last one, whose end the host sees early
# Idle time of a schedule in units of a micro-batch's forward and backward pass on all stages but one.
SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved_1f1b": 1 / 2, "zero_bubble": 1 / 3}


def start(options, gpu, *fields):
    """Starts a run; returns the process and its log folder."""
    logs = tempfile.mkdtemp()
    environment = dict(os.environ) if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    words = [options.trainctl, "run", str(JOB), f"launch.device={options.device}", f"launch.log_dir={logs}", *options.fields, *fields]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), pathlib.Path(logs)


def step_times(process, logs):
    """Milliseconds of the steps that count."""
    said, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(said[-3000:])
    rows = [json.loads(line) for line in (logs / "1/metrics.jsonl").read_text().splitlines()]
    return [1e3 * row["seconds"] for row in rows if "kind" not in row and "seconds" in row and row.get("run_step", 0) > WARM][:-1]


def text_of(times):
    return f"{statistics.median(times):8.1f} ms [{min(times):.1f} .. {max(times):.1f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("fields", nargs="*")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_intermixed_args()
    for _ in range(options.rounds):
        gpus = range(options.stages) if options.device == "cuda" else [None]
        alone = [step_times(*run) for run in [start(options, gpu, "launch.ranks=1") for gpu in gpus]]
        whole = statistics.mean(statistics.median(times) for times in alone)
        print(f"{'one rank':18} {text_of(sum(alone, []))}", flush=True)
        for schedule, idle in SCHEDULES.items():
            chunks = 2 if schedule == "interleaved_1f1b" else 1
            times = step_times(*start(options, None, f"launch.ranks={options.stages}", f"parallel.stages={options.stages}", f"parallel.schedule={schedule}",
                                      f"parallel.chunks={chunks}"))
            implied = whole / options.stages * (1 + idle * (options.stages - 1) / MICRO_BATCHES)
            print(f"{schedule:18} {text_of(times)}, its schedule implies {implied:.1f} ms: {100 * (statistics.median(times) / implied - 1):+.1f} %", flush=True)


if __name__ == "__main__":
    main()
