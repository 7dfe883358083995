"""Copies the numbers of a run to a tracker, while it trains or afterwards. `track:` in a job does it for each of its runs.

    python3 -m trainctl.track log_output/3 mlflow [--to FOLDER-OR-URI]      needs mlflow or mlflow-skinny
    python3 -m trainctl.track log_output/3 wandb [--to PROJECT]             needs wandb; offline: `wandb sync` uploads the folder later
    python3 -m trainctl.track log_output/3 'command: ./push.py'             the program gets the lines of metrics.jsonl on its stdin
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from .run import Run

_NO_METRICS = {"kind", "epoch", "step", "run_step", "samples", "not_finite"}
_COMMAND = "command:"
_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}


def _numbers(line: Dict[str, Any]) -> Dict[str, float]:
    prefix = "validation_" if line.get("kind") == "validation" else ""
    return {prefix + key: value for key, value in line.items() if key not in _NO_METRICS and isinstance(value, (int, float))}


def _logged(run: Run) -> Iterator[Tuple[int, Dict[str, float]]]:
    for line in run.follow():
        if line.get("kind") in (None, "validation"):
            yield line["run_step"], _numbers(line)


def _job(run: Run) -> Dict[str, Any]:
    import yaml
    return yaml.safe_load((run.folder / "job.yaml").read_text())


def _parameters(job: Dict[str, Any]) -> Dict[str, str]:
    """The fields of the job, "optimizer.learning_rate.base": "0.1", without the network."""
    flat: Dict[str, str] = {}

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{path}.{key}" if path else str(key), inner)
        elif value is not None:
            flat[path] = str(value)[:500]

    # Values of env may be secrets, and so may addresses and commands of trackers.
    add("", {key: value for key, value in job.items() if key not in ("network", "modules", "env", "track")})
    return flat


def mlflow(run: Run, to: Optional[str] = None) -> str:
    """Returns the id of the run in MLflow. `to`: a folder, or the URI of a server; $MLFLOW_TRACKING_URI if omitted."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for it
    import mlflow as package
    if to is not None:
        is_folder = ":" not in to and to != "databricks"
        package.set_tracking_uri(pathlib.Path(to).resolve().as_uri() if is_folder else to)
    job = _job(run)
    package.set_experiment(job.get("name", "job"))
    with package.start_run(run_name=f"run {run.number}") as started:
        package.log_params(_parameters(job))
        for step, numbers in _logged(run):
            package.log_metrics(numbers, step=step)
        package.set_tag("trainctl.ending", str(run.result().exit_code))
        return started.info.run_id


def wandb(run: Run, to: Optional[str] = None) -> str:
    """Returns the folder of the run, which `wandb sync` uploads; with WANDB_MODE=online it is uploaded at once."""
    import wandb as package
    job = _job(run)
    started = package.init(project=to or job.get("name", "job"), name=f"run {run.number}", dir=str(run.folder),
                           mode=os.environ.get("WANDB_MODE", "offline"), config=_parameters(job))
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


def _obstacle(tracker: str, folder: str) -> Optional[Tuple[str, str]]:
    """Returns why the tracker cannot start on this host, and what helps; None if it can. Imports nothing, because that takes seconds."""
    package = _PACKAGES.get(tracker)
    if package is not None:
        found = importlib.util.find_spec(tracker)
        if found is None or found.origin is None:  # a folder without __init__.py is no package
            return f"the Python package {tracker} is not installed for {sys.executable}", f"{sys.executable} -m pip install {package}"
        if importlib.util.find_spec("yaml") is None:
            return f"{tracker} needs the Python package yaml, which is not installed for {sys.executable}", \
                f"{sys.executable} -m pip install pyyaml"
        return None
    if not tracker.startswith(_COMMAND):
        return f"unknown tracker '{tracker}'", "mlflow, wandb, or 'command: PROGRAM'"
    try:
        program = shlex.split(tracker[len(_COMMAND):])[0]
    except (ValueError, IndexError):  # the shell reports what is wrong with it
        return None
    if "=" in program or any(mark in program for mark in "$`|&;<>(){}*?"):
        return None
    path = pathlib.Path(folder, program)
    if "/" in program and not path.exists():
        return f"there is no program {path}", "a command runs in the folder of the job file"
    if "/" in program:
        return None if os.access(path, os.X_OK) else (f"{path} is not executable", f"chmod +x {path}")
    if subprocess.run(["sh", "-c", 'command -v -- "$1"', "sh", program], cwd=folder, capture_output=True).returncode == 0:
        return None
    if path.exists():
        return f"there is no program '{program}' in PATH", f"write ./{program} for the file beside the job file"
    return f"there is no program '{program}' in PATH", "install it, or give its path"


def _arguments(words: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m trainctl.track", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="RUN TRACKER",
                        help="the folder of a run, log_output/3, and mlflow, wandb, or 'command: PROGRAM'")
    parser.add_argument("--to", help="where: a folder or URI of MLflow, a project of W&B")
    parser.add_argument("--check", action="store_true", help="only report whether TRACKER can start")
    parser.add_argument("--folder", default=".", help="the folder in which a command would run, for --check")
    options = parser.parse_args(words)
    wanted = 1 if options.check else 2
    if len(options.words) != wanted:
        parser.error("expected a TRACKER" if options.check else "expected RUN and TRACKER")
    options.run, options.tracker = options.words[0], options.words[-1]
    return options


def main(words: Optional[List[str]] = None) -> int:
    options = _arguments(words)
    obstacle = _obstacle(options.tracker, options.folder)
    if obstacle is not None:
        print("\n".join(obstacle))
        return 1
    if options.check:
        return 0
    run = Run(options.run)
    if not (run.folder / "job.yaml").exists():
        print(f"{run.folder} is not the folder of a run\nname one, such as log_output/3")
        return 1
    if options.tracker == "mlflow":
        number = mlflow(run, options.to)
        import mlflow as package
        print(f"tracked: run {number} in {package.get_tracking_uri()}; to see it: mlflow ui --backend-store-uri {package.get_tracking_uri()}")
    elif options.tracker == "wandb":
        folder = wandb(run, options.to)
        print(f"tracked: {folder}" + ("; to upload it: wandb sync " + folder if "offline-run" in folder else ""))
    else:
        return command(run, options.tracker[len(_COMMAND):].strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
