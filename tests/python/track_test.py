#!/usr/bin/env python3
"""Trackers get the numbers of a run: MLflow's file store and W&B's offline folder are read back with their own packages.

    tests/python/track_test.py build/release/bin/trainctl"""
import json
import os
import pathlib
import sys
import tempfile

try:
    import numpy  # noqa: F401
    import yaml  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ["TRAINCTL_BINARY"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(ROOT / "python"))
import trainctl  # noqa: E402
from trainctl import track  # noqa: E402
from wandb_file import losses_of  # noqa: E402

JOB = {"name": "tracked", "dataset": {"type": "random", "shape": [8], "classes": 4, "samples": 64, "batch": 8},
       "validation": {"dataset": {"samples": 16}}, "metrics": ["accuracy"], "network": [{"type": "dense", "units": 4}],
       "loss": "softmax_cross_entropy", "optimizer": "adam", "train": {"epochs": 2}, "launch": {"device": "cpu"}}


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trainctl-track-"))
    os.environ.update(XDG_RUNTIME_DIR=str(folder), WANDB_SILENT="true", WANDB_ERROR_REPORTING="false",
                      MLFLOW_ALLOW_FILE_STORE="true")
    run = trainctl.Job(JOB, folder).run(wait=True)
    losses = {line["run_step"]: line["loss"] for line in run.steps()}
    checks = {line["run_step"]: line["accuracy"] for line in run.validations()}

    copied = folder / "lines"
    assert track.command(run, f"cat > {copied}") == 0
    lines = [json.loads(line) for line in copied.read_text().splitlines()]
    assert [line["run_step"] for line in lines if "kind" not in line] == sorted(losses)
    reported = ["command: lines"]

    try:
        import mlflow
        from mlflow.tracking import MlflowClient
    except ImportError:
        mlflow = None
    if mlflow is not None:
        store = folder / "mlruns"
        number = track.mlflow(run, str(store))
        client = MlflowClient(store.as_uri())
        assert {m.step: round(m.value, 6) for m in client.get_metric_history(number, "loss")} == {s: round(v, 6) for s, v in losses.items()}
        assert {m.step: m.value for m in client.get_metric_history(number, "validation_accuracy")} == checks
        assert client.get_run(number).data.params["optimizer.type"] == "adam"
        reported.append("mlflow: metrics and parameters")

    try:
        import wandb
    except ImportError:
        wandb = None
    if wandb is not None:
        found = losses_of(pathlib.Path(track.wandb(run)))
        assert found == losses, (found, losses)
        reported.append("wandb: an offline run")
    print("; ".join(reported))
    if len(reported) < 3:
        print("skipped: mlflow or wandb is not installed")
        sys.exit(77)


if __name__ == "__main__":
    main()
