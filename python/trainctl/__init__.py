"""A thin layer over the program trainctl: everything is computed by the program, which this package starts.

    import trainctl

    job = trainctl.Job("colors.yaml").override({"train.epochs": 3})
    print(job.plan()["parameters"])
    run = job.run()
    for step in run.follow():
        print(step["run_step"], step["loss"])
    print(run.result().validation)
    weights = run.checkpoint("best").numpy()
    answers = job.predict("photos/")
"""
from .checkpoint import Checkpoint
from .job import Job, TrainctlError, binary
from .run import Run, RunResult, runs

__all__ = ["Checkpoint", "Job", "Run", "RunResult", "TrainctlError", "binary", "runs"]
__version__ = "0.1.0"
