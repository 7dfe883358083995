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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .job import Job, TrainctlError, binary
    from .run import Run, RunResult, runs

__all__ = ["Checkpoint", "Job", "Run", "RunResult", "TrainctlError", "binary", "runs"]
__version__ = "0.1.0"

_MODULES = {"Checkpoint": "checkpoint", "Job": "job", "TrainctlError": "job", "binary": "job", "Run": "run", "RunResult": "run",
            "runs": "run"}


def __getattr__(name: str) -> Any:
    """Loads a module at first use: `trainctl.track` works without numpy."""
    if name not in _MODULES:
        raise AttributeError(f"module 'trainctl' has no attribute '{name}'")
    import importlib
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
