"""Runs: their progress while they train, and what they leave."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Union

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

_PAUSE = 0.1


@dataclasses.dataclass
class RunResult:
    """Records how a run ended. `validation`: {"accuracy": {"last", "best", "best_step"}, …}."""
    exit_code: int
    step: int = 0
    steps: int = 0
    loss: Optional[float] = None
    metrics: Dict[str, float] = dataclasses.field(default_factory=dict)
    validation: Dict[str, Dict[str, Any]] = dataclasses.field(default_factory=dict)
    stopped_early: Optional[str] = None
    seconds: float = 0.0


class Run:
    """A run's folder, log_output/3."""

    def __init__(self, folder: Union[str, "os.PathLike[str]"], process: Optional["subprocess.Popen[str]"] = None,
                 output: Optional[IO[str]] = None):
        self.folder = pathlib.Path(folder)
        self._process = process
        self._output = output

    @staticmethod
    def numbers(log_dir: pathlib.Path) -> List[int]:
        if not log_dir.is_dir():
            return []
        return sorted(int(one.name) for one in log_dir.iterdir() if one.name.isdigit())

    @classmethod
    def started_by(cls, process: "subprocess.Popen[str]", log_dir: pathlib.Path, before: Set[int], output: IO[str]) -> "Run":
        """Waits until the launcher has made the run's folder. TrainctlError if it refuses the job."""
        from .job import TrainctlError
        while True:
            output.seek(0)
            text = output.read()
            for line in text.splitlines():
                if ", logs in " in line and line.rsplit("/", 1)[-1].strip().isdigit():
                    number = int(line.rsplit("/", 1)[-1])
                    if number not in before:
                        return cls(log_dir / str(number), process, output)
            if process.poll() is not None:
                raise TrainctlError(text.strip(), process.returncode)
            time.sleep(_PAUSE)

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def is_running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return not (self.folder / "outcome.json").exists() or not (self.folder / "outcome.json").stat().st_size

    def wait(self, check: bool = True) -> RunResult:
        """Waits for the end. TrainctlError, with the last lines of the output, if the run fails and `check` is set."""
        if self._process is not None:
            self._process.wait()
        else:
            while self.is_running():
                time.sleep(_PAUSE)
        result = self.result()
        if check and result.exit_code != 0:
            from .job import TrainctlError
            raise TrainctlError(self.output()[-4000:].strip(), result.exit_code)
        return result

    def stop(self) -> None:
        """Asks the run to stop after the current step, and to save."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def output(self) -> str:
        if self._output is not None:
            self._output.seek(0)
            return self._output.read()
        file = self.folder / "rank.0" / "stdout"
        return file.read_text() if file.exists() else ""

    def lines(self) -> List[Dict[str, Any]]:
        """All lines of metrics.jsonl (docs/logs.md)."""
        file = self.folder / "metrics.jsonl"
        if not file.exists():
            return []
        lines = []
        for text in file.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:  # still being written
                continue
        return lines

    def steps(self) -> List[Dict[str, Any]]:
        """The logged steps: run_step, loss, learning_rate, metrics."""
        return [line for line in self.lines() if "run_step" in line and "kind" not in line]

    def validations(self) -> List[Dict[str, Any]]:
        return [line for line in self.lines() if line.get("kind") == "validation"]

    def follow(self) -> Iterator[Dict[str, Any]]:
        """Yields each line of metrics.jsonl with a step or a validation, as it is written, until the run ends. A run that
        restarts repeats some steps; each is yielded once."""
        position, last, seen = 0, b"", set()
        while True:
            is_last = not self.is_running()
            whole = b""
            file = self.folder / "metrics.jsonl"
            if file.exists():
                with open(file, "rb") as lines:
                    lines.seek(position - len(last))
                    if lines.read(len(last)) != last:  # a restart has removed lines
                        position, last = 0, b""
                        lines.seek(0)
                    whole = lines.read()
            whole = whole[:whole.rfind(b"\n") + 1]
            for text in whole.splitlines(keepends=True):
                position, last = position + len(text), text
                try:
                    line = json.loads(text)
                except ValueError:  # its writer has died
                    continue
                key = (line.get("kind"), line.get("run_step"))
                if key[1] is not None and key not in seen:
                    seen.add(key)
                    yield line
            if is_last:
                return
            time.sleep(_PAUSE)

    def result(self) -> RunResult:
        file = self.folder / "outcome.json"
        if not file.exists() or not file.stat().st_size:
            return RunResult(exit_code=-1)
        outcome = json.loads(file.read_text())
        early = outcome.get("stopped_early") or {}
        return RunResult(exit_code=outcome["exit_code"], step=outcome.get("step", 0), steps=outcome.get("steps", 0),
                         loss=outcome.get("loss"), metrics=outcome.get("metrics") or {},
                         validation=outcome.get("validation") or {}, stopped_early=early.get("reason"),
                         seconds=outcome.get("seconds", 0.0))

    def checkpoints(self) -> List[Checkpoint]:
        """The complete checkpoints in the run's own folder, the oldest first."""
        from .checkpoint import Checkpoint
        folder = self.folder / "checkpoints"
        found = [Checkpoint(one) for one in sorted(folder.glob("step_*")) if (one / "checkpoint.json").exists()] if folder.is_dir() else []
        return sorted(found, key=lambda one: one.step)

    def checkpoint(self, which: str = "latest", metric: Optional[str] = None) -> Checkpoint:
        """"latest", or "best": by a metric of the validation, or by the loss."""
        all_of_them = self.checkpoints()
        if not all_of_them:
            raise FileNotFoundError(f"{self.folder} has no checkpoint")
        if which == "latest":
            return all_of_them[-1]
        name = metric or next((key for one in all_of_them for key in one.metrics if key != "loss"), "loss")
        rated = [one for one in all_of_them if isinstance(one.metrics.get(name), (int, float))]
        if not rated:
            raise ValueError(f"no checkpoint of {self.folder} has a validation {name}")
        sign = -1 if name == "loss" else 1
        return max(rated, key=lambda one: (sign * one.metrics[name], one.step))

    def plot(self, live: bool = False) -> Any:
        """Losses and validations over steps, with matplotlib. `live`: redraws in a notebook until the run ends."""
        import matplotlib.pyplot as plt
        figure, axes = plt.subplots()

        def draw() -> None:
            axes.clear()
            steps = [line for line in self.steps() if line.get("loss") is not None]
            axes.plot([line["run_step"] for line in steps], [line["loss"] for line in steps], label="training loss")
            checks = [line for line in self.validations() if line.get("loss") is not None]
            if checks:
                axes.plot([line["run_step"] for line in checks], [line["loss"] for line in checks], "o-", label="validation loss")
            axes.set_xlabel("step")
            axes.legend()

        draw()
        if live:
            from IPython.display import clear_output, display
            while self.is_running():
                clear_output(wait=True)
                display(figure)
                time.sleep(1)
                draw()
            clear_output(wait=True)
        return figure


def runs(log_dir: Union[str, "os.PathLike[str]"] = "log_output") -> List[Run]:
    """The runs of a log directory, the oldest first."""
    folder = pathlib.Path(log_dir)
    return [Run(folder / str(number)) for number in Run.numbers(folder)]
