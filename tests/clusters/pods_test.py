"""A played Kubernetes (pods.py): the pods of a rendered Indexed Job find each other and have the numbers of one host.

    python3 tests/clusters/pods_test.py TRAINCTL [--only NAME]

Needs root, since it makes network namespaces, and PyYAML; exits with 77 and the reason where it cannot run.
"""
import argparse
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import judge
from judge import JOB, PLAIN, ROOT, require

for packages in (ROOT / "build/clusters/python").glob("lib/python3*/site-packages"):
    sys.path.append(str(packages))
sys.path.insert(0, str(ROOT / "tests/hosts"))

PATIENCE = 600  # seconds after which something hangs
NAMES = ["mnist-mlp-0.mnist-mlp", "mnist-mlp-1.mnist-mlp"]


class Scene:
    def __init__(self, pods, trainctl, folder):
        self.pods, self.trainctl, self.folder, self.number = pods, trainctl, pathlib.Path(folder), 0
        self.processes = {}

    def render(self, fields, *more):
        self.number += 1
        self.logs = self.folder / f"logs.{self.number}"
        self.manifests = self.folder / f"manifests.{self.number}"
        said = subprocess.run([self.trainctl, "render", JOB, "-o", str(self.manifests), "launch.target=kubernetes", "launch.kubernetes.pods=2",
                               f"launch.log_dir={self.logs}", *PLAIN.split(), *fields.split(), *more], capture_output=True, text=True, check=False)
        require(said.returncode == 0, said.stdout + said.stderr)

    def start(self, index, **changed):
        import pods
        words, variables = pods.container(self.manifests, index)
        output = self.folder / f"pod.{self.number}.{index}"
        self.processes[index] = self.pods.start(NAMES[index], [self.trainctl, *words], {**variables, **changed}, output)

    def said(self):
        return "".join(f"\n-- pod {index}\n" + (self.folder / f"pod.{self.number}.{index}").read_text()[-2000:] for index in self.processes)

    def end(self, index):
        try:
            return self.processes[index].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pod {index} does not end: {self.said()}") from None

    def until(self, holds):
        """Waits until holds() is true. A pod that ends meanwhile leaves nothing to wait for."""
        from network import eventually
        ended = lambda: [index for index, process in self.processes.items() if process.poll() is not None]
        eventually(lambda: holds() or ended())
        require(holds(), f"pods that have ended: {ended()} {self.said()}")

    def kill_all(self):
        for process in self.processes.values():
            self.pods.signal(process, signal.SIGKILL)
            process.wait()
        self.processes = {}

    def losses(self):
        return judge.losses(self.logs / "1")


def late_names(scene):
    """Pods that come in any order, with names that resolve late, train with the losses of one host, and all complete."""
    from network import eventually
    fields = "launch.ranks=4 train.steps=12"
    scene.number += 1
    scene.logs = scene.folder / f"logs.{scene.number}"
    one = subprocess.run([scene.trainctl, "run", JOB, f"launch.log_dir={scene.logs}", *PLAIN.split(), *fields.split()],
                         capture_output=True, text=True, check=False)
    require(one.returncode == 0, one.stdout + one.stderr)
    expected = scene.losses()
    scene.render(fields)
    scene.pods.resolve(NAMES[0])
    scene.start(0)
    scene.until(lambda: "waiting for hosts: mnist-mlp-1.mnist-mlp cannot be reached" in scene.said())
    require(scene.processes[0].poll() is None and not scene.losses(), "it waits for a name: " + scene.said())
    scene.start(1)
    scene.pods.resolve(*NAMES)
    codes = [scene.end(0), scene.end(1)]
    require(codes == [0, 0], f"{codes} {scene.said()}")
    found = scene.losses()
    require(found.keys() == expected.keys() and len(found) == 12, f"{sorted(found)} {scene.said()}")
    worst = max(abs(found[step] - expected[step]) / abs(expected[step]) for step in expected)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    left = lambda: [str(path) for host in scene.pods.hosts.values() for path in (host.tree / "root/.cache/trainctl/runs").glob("*")]
    require(eventually(lambda: not left()), f"left: {left()}")
    return f"losses within {worst:.1e} of one host"


def restarted_pod(scene):
    """A pod that is started again is joined by the next attempt of the run."""
    scene.render("launch.ranks=2 train.steps=1000000 train.epochs=1000000 train.checkpoint=null launch.max_restarts=1 launch.reconnect=10s")
    scene.start(0)
    scene.start(1)
    scene.until(lambda: max(scene.losses(), default=0) >= 20)
    scene.pods.signal(scene.processes[1], signal.SIGKILL)
    scene.processes[1].wait()
    scene.start(1)
    launcher = lambda: (scene.folder / f"pod.{scene.number}.0").read_text()
    scene.until(lambda: "restarting all ranks (1 of 1)" in launcher())
    # Nothing is saved: the next attempt begins with the first step.
    again = lambda: launcher().split("restarting all ranks (1 of 1)")[1]
    scene.until(lambda: "epoch: 1 step: 1," in again() and "epoch: 1 step: 20," in again())
    for process in scene.processes.values():
        scene.pods.signal(process, signal.SIGTERM)
    codes = [scene.end(0), scene.end(1)]
    require(codes == [143, 143], f"{codes} {scene.said()}")
    return "the second attempt trained in the new pod; both pods ended with 143"


def terminated(scene):
    """SIGTERM to all pods, as when the Job is deleted: the ranks stop after one step, and the pods end within the grace."""
    scene.render("launch.ranks=2 train.steps=1000000 train.epochs=1000000")
    scene.start(0)
    scene.start(1)
    scene.until(lambda: max(scene.losses(), default=0) >= 20)
    begin = time.monotonic()
    for index in (1, 0):
        scene.pods.signal(scene.processes[index], signal.SIGTERM)
    codes = [scene.end(0), scene.end(1)]
    took = time.monotonic() - begin
    steps = {re.search(r"stopped after step (\d+)", (scene.logs / f"1/rank.{rank}/stdout").read_text()).group(1) for rank in range(2)}
    require(codes == [143, 143] and len(steps) == 1, f"{codes} {steps} {scene.said()}")
    return f"both ranks after step {steps.pop()}, {took:.1f} s after SIGTERM"


def alone(scene):
    """A pod that waits for the others, and one whose pod 0 was lost for good, end at SIGTERM: the kernel spares first processes that have no handler."""
    scene.render("launch.ranks=2 train.steps=1000000 train.epochs=1000000 launch.reconnect=3s")
    scene.start(0)
    scene.until(lambda: "waiting for hosts: mnist-mlp-1.mnist-mlp cannot be reached" in scene.said())
    scene.pods.signal(scene.processes[0], signal.SIGTERM)
    waited = scene.end(0)
    scene.start(0)
    scene.start(1)
    scene.until(lambda: max(scene.losses(), default=0) >= 20)
    scene.pods.signal(scene.processes[0], signal.SIGKILL)
    scene.processes[0].wait()
    scene.pods.signal(scene.processes[1], signal.SIGTERM)
    begin = time.monotonic()
    codes = [waited, scene.end(1)]
    require(codes == [143, 143], f"{codes} {scene.said()}")
    return f"both with 143, the one without pod 0 after {time.monotonic() - begin:.1f} s"


def lost_first(scene):
    """A pod 0 that takes the place of a lost one resumes from the newest checkpoint by itself, with the other pod as it is."""
    from network import eventually
    scene.render("launch.ranks=2 train.steps=1000000 train.epochs=1000000 launch.reconnect=10s", "train.checkpoint={every_steps: 25, async: false}")
    scene.start(0)
    scene.start(1)
    scene.until(lambda: max(scene.losses(), default=0) >= 60)
    scene.pods.signal(scene.processes[0], signal.SIGKILL)
    scene.processes[0].wait()
    last = max(scene.losses())
    scene.start(0)
    again = lambda: judge.losses(scene.logs / "2")
    scene.until(lambda: max(again(), default=0) > last)
    first, said = min(again()), (scene.folder / f"pod.{scene.number}.0").read_text()
    require("an earlier pod 0 has already run this job: resuming from run 1" in said, scene.said())
    require(first % 25 == 1 and 1 < first <= last + 1, f"lost after step {last}, on with step {first}")
    require(scene.processes[1].poll() is None, "pod 1 was never started again: " + scene.said())
    both = set(again()) & set(scene.losses())
    require(all(abs(again()[step] - scene.losses()[step]) < 1e-4 * scene.losses()[step] for step in both), "the steps done again have their losses")
    for process in scene.processes.values():
        scene.pods.signal(process, signal.SIGTERM)
    codes = [scene.end(0), scene.end(1)]
    require(codes == [143, 143], f"{codes} {scene.said()}")
    # Another Job of the same manifests has another uid, and begins anew.
    scene.kill_all()
    scene.start(0, TRAINCTL_JOB="another")
    scene.start(1, TRAINCTL_JOB="another")
    fresh = lambda: judge.losses(scene.logs / "3")
    require(eventually(lambda: max(fresh(), default=0) >= 5) and min(fresh()) == 1, scene.said())
    return f"lost after step {last}, on with step {first}; a Job applied again begins anew"


def wrong_token(scene):
    """A pod with another token trains nothing, and the launcher says which pod it is."""
    scene.render("launch.ranks=2 train.steps=5")
    scene.start(0)
    scene.start(1, TRAINCTL_TOKEN="f" * 64)
    output = lambda: (scene.folder / f"pod.{scene.number}.1").read_text()
    scene.until(lambda: "refused a connection" in output())
    require(not scene.losses(), "nothing is trained")
    return output().strip().splitlines()[-1]


CASES = [late_names, terminated, restarted_pod, alone, lost_first, wrong_token]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    try:
        import network
        import pods
    except ImportError as error:
        print(f"skipped: {error} (./bootstrap clusters)")
        return 77
    if reason := network.missing():
        print("skipped: " + reason)
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="pods.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with pods.Pods(folder, NAMES) as played:
            scene = Scene(played, str(pathlib.Path(options.trainctl).resolve()), folder)
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begin = time.monotonic()
                played.resolve(*NAMES)
                try:
                    said = case(scene)
                except (AssertionError, OSError, AttributeError, subprocess.SubprocessError) as error:
                    said, failed = f"FAILED: {error}", failed + 1
                scene.kill_all()
                print(f"{case.__name__:14} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
