"""Jobs: a job file or a dict, and the commands that read one."""
from __future__ import annotations

import copy
import csv
import io
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

import numpy as np
import yaml

from .run import Run

Path = Union[str, "os.PathLike[str]"]


class TrainctlError(RuntimeError):
    """trainctl refused a job or failed. The message is what it printed; `exit_code` is its exit code."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def binary() -> str:
    """The program: $TRAINCTL_BINARY, the one inside this package, or the one in PATH."""
    inside = pathlib.Path(__file__).parent / "program" / "bin" / "trainctl"
    found = os.environ.get("TRAINCTL_BINARY") or (str(inside) if inside.exists() else shutil.which("trainctl"))
    if not found:
        raise TrainctlError("the program trainctl is neither in PATH nor in this package; set TRAINCTL_BINARY", 3)
    return found


def _set(tree: Dict[str, Any], path: str, value: Any) -> None:
    """Sets "train.epochs". A bare value on the way ("loss: mse") becomes a mapping with its type."""
    *parents, last = path.split(".")
    for name in parents:
        inner = tree.get(name)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {"base" if name == "learning_rate" else "type": inner}
        tree[name] = inner
        tree = inner
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = value


class Job:
    """A job: the mapping of a job file. Relative paths in it are relative to `folder`."""

    def __init__(self, source: Union[Path, Mapping[str, Any]], folder: Optional[Path] = None):
        if isinstance(source, Mapping):
            self.spec: Dict[str, Any] = copy.deepcopy(dict(source))
            self.folder = pathlib.Path(folder or ".").resolve()
        else:
            file = pathlib.Path(source)
            self.spec = yaml.safe_load(file.read_text())
            self.folder = pathlib.Path(folder).resolve() if folder else file.resolve().parent

    def override(self, fields: Optional[Mapping[str, Any]] = None, **sections: Any) -> "Job":
        """A copy with other values: override({"train.epochs": 3}), override(seed=7). None removes a field."""
        job = Job(self.spec, self.folder)
        for path, value in {**(fields or {}), **sections}.items():
            _set(job.spec, path, copy.deepcopy(value))
        return job

    def yaml(self) -> str:
        return yaml.safe_dump(self.spec, sort_keys=False)

    # Commands.

    def command(self, name: str, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs `trainctl NAME - WORDS` in the job's folder, with the job on its standard input."""
        done = subprocess.run([binary(), *name.split(), "-", *words], cwd=self.folder, input=self.yaml(),
                              capture_output=True, text=True)
        if check and done.returncode != 0:
            raise TrainctlError((done.stderr or done.stdout).strip(), done.returncode)
        return done

    def check(self) -> None:
        """Raises TrainctlError with every problem of the job."""
        self.command("check")

    def plan(self) -> Dict[str, Any]:
        """The plan, as `trainctl plan --json` prints it."""
        return json.loads(self.command("plan", "--json").stdout)

    def model(self) -> str:
        """A table of the layers: shapes, parameters, operations."""
        return self.command("show model").stdout

    def log_dir(self) -> pathlib.Path:
        return self.folder / (self.spec.get("launch") or {}).get("log_dir", "log_output")

    def run(self, *words: str, wait: bool = False) -> Run:
        """Starts a run, in processes of its own. `words`: options of `trainctl run`, such as "--resume"."""
        before = set(Run.numbers(self.log_dir()))
        output = tempfile.TemporaryFile(mode="w+")
        process = subprocess.Popen([binary(), "run", "-", *words], cwd=self.folder, stdin=subprocess.PIPE, stdout=output,
                                   stderr=subprocess.STDOUT, text=True)
        assert process.stdin is not None
        process.stdin.write(self.yaml())
        process.stdin.close()
        run = Run.started_by(process, self.log_dir(), before, output)
        if wait:
            run.wait()
        return run

    def evaluate(self, checkpoint: Optional[str] = None) -> Dict[str, Any]:
        """Loss, metrics, confusion matrix, … of the validation, as `trainctl evaluate --json` prints them."""
        words = ["--checkpoint", str(checkpoint)] if checkpoint is not None else []
        return json.loads(self.command("evaluate", "--json", *words).stdout)

    def predict(self, samples: Union[None, Path, Sequence[Path], "np.ndarray"] = None, *, top: int = 1,
                checkpoint: Optional[str] = None) -> Union[List[Dict[str, str]], "np.ndarray"]:
        """Files, folders or tables: a list of rows, as `trainctl predict` writes them. An array of samples as the network
        reads them, after all transforms: the output of the network, an array with a row per sample. Nothing: the validation."""
        words = ["--checkpoint", str(checkpoint)] if checkpoint is not None else []
        if isinstance(samples, np.ndarray):
            return self._predict_array(samples, words)
        files: Iterable[Path] = [] if samples is None else [samples] if isinstance(samples, (str, os.PathLike)) else samples
        named = [str(pathlib.Path(file).resolve()) for file in files]
        text = self.command("predict", *named, "--top", str(top), *words).stdout
        return list(csv.DictReader(io.StringIO(text)))

    def _predict_array(self, samples: "np.ndarray", words: List[str]) -> "np.ndarray":
        resolved = yaml.safe_load(self.command("show spec").stdout)
        dataset = resolved["dataset"]
        fields = [name for name in (dataset.get("fields") or {}) if name != "label"]
        image_sets = ("image_folder", "cifar10", "cifar100", "tar")
        name = fields[0] if fields else "image" if dataset["type"] in image_sets else "data"
        is_integer = np.issubdtype(samples.dtype, np.integer)
        with tempfile.TemporaryDirectory() as folder:
            np.save(os.path.join(folder, "data.npy"), np.ascontiguousarray(samples, np.int32 if is_integer else np.float32))
            classes = dataset.get("label_dtype", "i32") != "f32"
            label = np.zeros(len(samples), np.int32) if classes else np.zeros((len(samples), 1), np.float32)
            np.save(os.path.join(folder, "label.npy"), label)
            arrays = {"type": "npy", "path": folder, "fields": {name: "data.npy", "label": "label.npy"},
                      "batch": min(len(samples), dataset.get("batch", 32)), "label_dtype": "i32" if classes else "f32"}
            job = self.override({"dataset": arrays, "validation": {"dataset": {"path": folder}}, "train.stop_when": None})
            if isinstance(job.spec.get("train"), dict) and isinstance(job.spec["train"].get("checkpoint"), dict):
                job.spec["train"]["checkpoint"].pop("keep_best", None)
            out = os.path.join(folder, "out.npy")
            job.command("predict", "-o", out, *words)
            return np.load(out)

    def _repr_html_(self) -> str:
        import html
        return f"<pre>{html.escape(self.yaml())}</pre>"
