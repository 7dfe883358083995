"""Jobs whose reports are opened, and a folder with their runs and pages."""
import os, pathlib, shutil, subprocess, sys, tempfile, time

source = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(source / "tests/hosts"))
import network

SMALL = """name: small
dataset: {type: random, shape: [8], label_dtype: f32, samples: 64, batch: 8}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: act1, type: relu}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
validation: {dataset: {samples: 16}}
train: {epochs: 3, checkpoint: {every_epochs: 1}}
launch: {device: cpu}
"""

PIPELINE = """name: pipeline
dataset: {type: random, shape: [16], label_dtype: f32, samples: 256, batch: 32}
network:
  - {name: in, type: dense, units: 32}
  - {type: relu}
  - {name: mid, type: dense, units: 32}
  - {type: relu}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: adam, learning_rate: 0.001}
train: {epochs: 2}
parallel: {mode: semi_auto_parallel, stages: 2, micro_batches: 4, stage_config: {in: 0, relu: 0, mid: 1, relu_1: 1, out: 1},
           strategies: {mid: [[1, 2], [1, 2]]}}
launch: {ranks: 4, device: cpu}
"""

BLOCKS = """name: blocks
vars: {d: 64}
dataset: {type: random, shape: ["${d}"], label_dtype: f32, samples: 4096, batch: 512}
modules:
  block:
    - {name: fc, type: dense, units: "${d}"}
    - {name: act, type: gelu}
    - {name: sum, type: add, inputs: [act, input]}
network:
  - {name: first, type: dense, units: "${d}"}
  - {module: block, name: h, repeat: 12}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
parallel: {mode: semi_auto_parallel, stages: 4, micro_batches: 8}
launch: {ranks: 64, device: cpu, machine: h100x8}
"""

FLAKY = """name: flaky
command: [sh, -c, "echo '</script>'; test $TORCHELASTIC_RESTART_COUNT = 1 || exit 3"]
env: {PASSWORD: swordfish}
launch: {max_restarts: 1}
"""


class Scene:
    """A folder with runs, and the pages made of them."""

    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, folder, 0

    def trainctl(self, *words, ok=(0,), **environment):
        done = subprocess.run([self.program, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=1200,
                              env=dict(os.environ, OMP_NUM_THREADS="1", **environment))
        assert done.returncode in ok, f"trainctl {' '.join(map(str, words))} exited with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run(self, job, *words, ok=(0,), **environment):
        (self.folder / "job.yaml").write_text(job)
        self.trainctl("run", "job.yaml", *words, ok=ok, **environment)
        self.runs += 1
        return self.folder / "log_output" / str(self.runs)

    def start(self, job, *words):
        """A run that continues: its process, and its folder."""
        (self.folder / "job.yaml").write_text(job)
        process = subprocess.Popen([self.program, "run", "job.yaml", *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.runs += 1
        return process, self.folder / "log_output" / str(self.runs)

    def worker(self, run, rank):
        """The pid of a rank of a run of this scene; None if there is none at the moment."""
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_text().split("\0")
                here = os.readlink(entry / "cwd") == str(self.folder)
            except OSError:
                continue
            if here and "worker" in words and run.name in words and words[words.index("--rank") + 1] == str(rank):
                return int(entry.name)
        return None

    def page(self, name, *words):
        path = self.folder / f"{name}.html"
        begin = time.monotonic()
        self.trainctl("report", *words, "-o", path)
        return path, time.monotonic() - begin


def over_hosts(scene):
    """The folder of a run over ssh on two test hosts; or None, and why there are none."""
    if reason := network.missing():
        return None, reason
    logs = scene.folder / "on_hosts"
    with tempfile.TemporaryDirectory(prefix="report.", dir=scene.program.parent) as folder, network.Network(folder, ["a", "b"]) as hosts:
        (pathlib.Path(folder) / "job.yaml").write_text(PIPELINE)
        done = hosts.run(f"{scene.program} run {folder}/job.yaml launch.hosts='[a:2, b:2]' launch.log_dir={folder}/logs", timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.copytree(f"{folder}/logs", logs)
    return logs / "1", None
