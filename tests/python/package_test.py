#!/usr/bin/env python3
"""The Python package: jobs as dicts, plans, runs that are followed, checkpoints as arrays, predictions.

    tests/python/package_test.py build/release/bin/trainctl"""
import os
import pathlib
import sys
import tempfile

try:
    import numpy as np
    import yaml  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ["TRAINCTL_BINARY"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(ROOT / "python"))
import trainctl  # noqa: E402

JOB = {
    "name": "from_python",
    "dataset": {"type": "csv", "path": "table.csv", "fields": {"data": ["a", "b"], "label": "kind"}, "batch": 10,
                "split": {"train": 0.8, "validation": 0.2}},
    "validation": {},
    "metrics": ["accuracy"],
    "network": [{"type": "dense", "units": 16}, {"type": "relu"}, {"name": "out", "type": "dense", "units": 2}],
    "loss": "softmax_cross_entropy",
    "optimizer": {"type": "adam", "learning_rate": 0.02},
    "train": {"epochs": 4, "checkpoint": {"every_epochs": 1, "keep": 4}},
    "launch": {"device": "cpu", "ranks": 2},
    "parallel": {"mode": "data_parallel", "optimizer_shard": {"level": 3, "min_kb": 0}},
}


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trainctl-python-"))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    random = np.random.default_rng(1)
    points = random.normal(size=(200, 2))
    lines = [f"{a:.5f},{b:.5f},{'yes' if a + b > 0 else 'no'}" for a, b in points]
    (folder / "table.csv").write_text("a,b,kind\n" + "\n".join(lines) + "\n")

    job = trainctl.Job(JOB, folder)
    changed = job.override({"optimizer.learning_rate": 0.01, "train.epochs": 2}, seed=7)
    assert job.spec["train"]["epochs"] == 4 and changed.spec["train"]["epochs"] == 2 and changed.spec["seed"] == 7
    assert job.override({"loss.label_smoothing": 0.1}).spec["loss"] == {"type": "softmax_cross_entropy", "label_smoothing": 0.1}
    job.check()
    plan = job.plan()
    assert plan["parameters"] == 2 * 16 + 16 + 16 * 2 + 2 and plan["ranks"] == 2, plan
    assert "dense" in job.model()
    try:
        job.override({"train.epoks": 1}).check()
    except trainctl.TrainctlError as error:
        assert error.exit_code == 2 and "epoks" in str(error) and "epochs" in str(error), error
    else:
        raise AssertionError("a wrong job was accepted")
    try:
        job.override({"dataset.path": "nowhere.csv"}).run()
    except trainctl.TrainctlError as error:
        assert error.exit_code == 2, error
    else:
        raise AssertionError("a job without data was run")

    run = job.run()
    lines = list(run.follow())
    steps = [line for line in lines if "kind" not in line]
    assert [line["run_step"] for line in steps] == list(range(1, len(steps) + 1)) and len(steps) >= 60, len(steps)
    assert len([line for line in lines if line.get("kind") == "validation"]) == 4
    result = run.wait()
    assert result.exit_code == 0 and result.step == len(steps)
    assert result.validation["accuracy"]["best"] >= result.validation["accuracy"]["last"] > 0.7, result

    assert [one.step for one in run.checkpoints()] == sorted({line["run_step"] for line in lines if line.get("kind") == "validation"})
    best = run.checkpoint("best")
    assert best.metrics["accuracy"] == max(one.metrics["accuracy"] for one in run.checkpoints())
    assert best.classes == ["no", "yes"]
    weights = run.checkpoint().numpy()
    assert {array.shape for array in weights.values()} == {(16, 2), (16,), (2, 16), (2,)}, weights.keys()

    # Predictions of an array are those of the weights, computed here.
    dense = [name for name in weights if name.endswith(".weight")]
    first = next(name for name in dense if weights[name].shape == (16, 2)).rsplit(".", 1)[0]
    hidden = np.maximum(points @ weights[f"{first}.weight"].T + weights[f"{first}.bias"], 0)
    expected = hidden @ weights["out.weight"].T + weights["out.bias"]
    logits = job.predict(points.astype(np.float32), checkpoint="latest")
    assert logits.shape == (200, 2) and np.abs(logits - expected).max() < 1e-4, np.abs(logits - expected).max()

    (folder / "new.csv").write_text("a,b\n1,1\n-1,-1\n")
    rows = job.predict(folder / "new.csv", top=2)
    assert [row["class"] for row in rows] == ["yes", "no"], rows
    assert job.evaluate()["confusion"] is not None
    assert [one.number for one in trainctl.runs(folder / "log_output")] == [1]
    print("the package follows runs, reads checkpoints and predicts")


if __name__ == "__main__":
    main()
