"""One job, started in every way that there is: its losses are the same.

    python3 tests/clusters/same_losses_test.py TRAINCTL

One host, several hosts over ssh, a real Slurm, a real mpirun, the played Kubernetes; four ranks each, on two hosts beyond the first.
Ways that cannot be tried here are named with the reason; exits with 77 if there are none but the first.
"""
import pathlib
import subprocess
import sys
import tempfile
import time

import judge
from judge import JOB, PLAIN, ROOT, require

for packages in (ROOT / "build/clusters/python").glob("lib/python3*/site-packages"):
    sys.path.append(str(packages))
sys.path.insert(0, str(ROOT / "tests/hosts"))

STEPS = 20
PATIENCE = 600  # seconds after which something hangs
FIELDS = f"launch.ranks=4 train.steps={STEPS} {PLAIN}"
NAMES = ["mnist-mlp-0.mnist-mlp", "mnist-mlp-1.mnist-mlp"]


class NotHere(Exception):
    pass


def require_done(said):
    require(said.returncode == 0, said.stdout + said.stderr)


def one_host(trainctl, folder):
    require_done(subprocess.run([trainctl, "run", JOB, f"launch.log_dir={folder}/logs", *FIELDS.split()], capture_output=True, text=True, check=False))


def over_ssh(trainctl, folder):
    import network
    if reason := network.missing():
        raise NotHere(reason)
    with network.Network(folder, ["a", "b"]) as hosts:
        require_done(hosts.run(f"{trainctl} run {JOB} launch.log_dir={folder}/logs launch.hosts='[a:2, b:2]' {FIELDS}", timeout=PATIENCE))


def under_slurm(trainctl, folder):
    import slurm
    if reason := slurm.missing():
        raise NotHere(reason)
    with slurm.Slurm(folder, 2) as cluster:
        said = cluster.run(trainctl, "run", JOB, f"launch.log_dir={folder}/logs", "launch.target=slurm", "launch.slurm.nodes=2", *FIELDS.split())
        require_done(said)
        number = said.stdout.split("Slurm job ")[1].split()[0]
        done = lambda: cluster.job(number).get("JobState") in ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT")
        require(slurm.eventually(done) and cluster.job(number)["JobState"] == "COMPLETED", f"{cluster.job(number)}")


def by_mpirun(trainctl, folder):
    import mpirun_test
    import network
    if reason := network.missing() or (None if mpirun_test.find() else "needs mpirun of Open MPI (./bootstrap clusters)"):
        raise NotHere(reason)
    with network.Network(folder, ["a", "b"]) as hosts:
        scene = mpirun_test.Scene(hosts, trainctl)
        require_done(hosts.run(scene.mpirun("-n 2 --host a,b", f"launch.ranks=4 train.steps={STEPS}"), timeout=PATIENCE))
        scene.logs.rename(f"{folder}/logs")


def in_pods(trainctl, folder):
    try:
        import network
        import pods
    except ImportError as error:
        raise NotHere(f"{error} (./bootstrap clusters)") from None
    if reason := network.missing():
        raise NotHere(reason)
    require_done(subprocess.run([trainctl, "render", JOB, "-o", f"{folder}/manifests", "launch.target=kubernetes", "launch.kubernetes.pods=2",
                                 f"launch.log_dir={folder}/logs", *FIELDS.split()], capture_output=True, text=True, check=False))
    with pods.Pods(folder, NAMES) as played:
        played.resolve(*NAMES)
        outputs = [pathlib.Path(folder, f"pod.{index}") for index in (0, 1)]
        processes = []
        for index, output in enumerate(outputs):
            words, variables = pods.container(f"{folder}/manifests", index)
            processes.append(played.start(NAMES[index], [trainctl, *words], variables, output))
        codes = [process.wait(PATIENCE) for process in processes]
        require(codes == [0, 0], f"{codes} " + "".join(output.read_text() for output in outputs))


def main():
    trainctl = str(pathlib.Path(sys.argv[1]).resolve())
    expected, compared, failed = None, 0, 0
    for way in (one_host, over_ssh, under_slurm, by_mpirun, in_pods):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="same.", dir=pathlib.Path(trainctl).parent) as folder:
            try:
                way(trainctl, folder)
                losses = judge.losses(f"{folder}/logs/1")
                expected = expected or losses
                worst = judge.difference(expected, losses, STEPS)
                require(worst < 1e-4, f"losses differ by {worst:.2g}")
                said, compared = f"{STEPS} losses, at most {worst:.1e} from those of one host", compared + 1
            except NotHere as reason:
                said = f"left out: {reason}"
            except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
                said, failed = f"FAILED: {error}", failed + 1
                if expected is None:
                    return 1
        print(f"{way.__name__:12} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0 if compared > 1 else 77


if __name__ == "__main__":
    sys.exit(main())
