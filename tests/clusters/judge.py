"""Shared by the tests of this folder: the job, and how its run is judged."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = f"{ROOT}/configs/mnist_mlp.yaml"
PLAIN = "parallel.stages=1 parallel.stage_config={} parallel.strategies=null parallel.mode=data_parallel parallel.optimizer_shard=0"


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def difference(expected, found, steps):
    """The largest relative difference of two runs' losses, which both have these steps."""
    require(found.keys() == expected.keys() and len(found) == steps, f"steps {sorted(found)}, not {sorted(expected)}")
    return max(abs(found[step] - expected[step]) / abs(expected[step]) for step in expected)


def losses(run):
    """{step: loss} of the run in that folder, as far as it is written."""
    path = pathlib.Path(run) / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line}
