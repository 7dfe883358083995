"""Copies the numbers of a run to a tracker, while it trains or afterwards.

    python3 -m trainctl.track log_output/3 mlflow [--to FOLDER-OR-URI]      needs mlflow or mlflow-skinny
    python3 -m trainctl.track log_output/3 wandb [--to PROJECT]             needs wandb; offline: `wandb sync` uploads the folder later
    python3 -m trainctl.track log_output/3 'command: ./push.py'             the program gets the lines of metrics.jsonl on its stdin
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
from typing import Any, Dict, Iterator, Optional, Tuple, Union

import yaml

from .run import Run

_NO_METRICS = {"kind", "epoch", "step", "run_step", "samples", "not_finite"}


def _numbers(line: Dict[str, Any]) -> Dict[str, float]:
    prefix = "validation_" if line.get("kind") == "validation" else ""
    return {prefix + key: value for key, value in line.items() if key not in _NO_METRICS and isinstance(value, (int, float))}


def _logged(run: Run) -> Iterator[Tuple[int, Dict[str, float]]]:
    for line in run.follow():
        if line.get("kind") in (None, "validation"):
            yield line["run_step"], _numbers(line)


def _parameters(run: Run) -> Dict[str, str]:
    """The fields of the job, "optimizer.learning_rate.base": "0.1", without the network."""
    flat: Dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{path}.{key}" if path else str(key), inner)
        elif value is not None:
            flat[path] = str(value)[:500]

    job = yaml.safe_load((run.folder / "job.yaml").read_text())
    for hidden in ("network", "modules", "env"):  # values of env may be secrets
        job.pop(hidden, None)
    add("", job)
    return flat


def mlflow(run: Run, to: Optional[str] = None) -> str:
    """Returns the id of the run in MLflow. `to`: a folder, or the URI of a server; $MLFLOW_TRACKING_URI if omitted."""
    import mlflow as package
    if to is not None:
        package.set_tracking_uri(to if "://" in to else pathlib.Path(to).resolve().as_uri())
    job = yaml.safe_load((run.folder / "job.yaml").read_text())
    package.set_experiment(job.get("name", "job"))
    with package.start_run(run_name=f"run {run.number}") as started:
        package.log_params(_parameters(run))
        for step, numbers in _logged(run):
            package.log_metrics(numbers, step=step)
        package.set_tag("trainctl.ending", str(run.result().exit_code))
        return started.info.run_id


def wandb(run: Run, to: Optional[str] = None) -> str:
    """Returns the folder of the run, which `wandb sync` uploads; with WANDB_MODE=online it is uploaded at once."""
    import wandb as package
    job = yaml.safe_load((run.folder / "job.yaml").read_text())
    started = package.init(project=to or job.get("name", "job"), name=f"run {run.number}", dir=str(run.folder),
                           mode=os.environ.get("WANDB_MODE", "offline"), config=_parameters(run))
    for step, numbers in _logged(run):
        started.log(numbers, step=step)
    folder = pathlib.Path(started.dir).parent
    started.finish()
    return str(folder)


def command(run: Run, words: Union[str, "list[str]"]) -> int:
    """Runs a program with the lines of metrics.jsonl on its standard input; returns its exit code."""
    program = subprocess.Popen(words, shell=isinstance(words, str), stdin=subprocess.PIPE, text=True)
    assert program.stdin is not None
    try:
        for line in run.follow():
            program.stdin.write(json.dumps(line) + "\n")
            program.stdin.flush()
        program.stdin.close()
    except BrokenPipeError:
        pass
    return program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run, log_output/3")
    parser.add_argument("tracker", help="mlflow, wandb, or 'command: PROGRAM'")
    parser.add_argument("--to", help="where: a folder or URI of MLflow, a project of W&B")
    options = parser.parse_args()
    run = Run(options.run)
    if options.tracker == "mlflow":
        print(mlflow(run, options.to))
    elif options.tracker == "wandb":
        print(wandb(run, options.to))
    elif options.tracker.startswith("command:"):
        raise SystemExit(command(run, options.tracker[len("command:"):].strip()))
    else:
        parser.error(f"unknown tracker '{options.tracker}'; mlflow, wandb, or 'command: PROGRAM'")


if __name__ == "__main__":
    main()
