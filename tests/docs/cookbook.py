"""Runs one job of configs/cookbook at a small size.

    cookbook.py SOURCE TRAINCTL JOB     JOB: the file's name without .yaml

A network must have the losses of one rank under its plan, and the losses must decrease. resume.yaml runs half of its steps under
its own plan, then resumes with the command in its header. A command must exit with 0 on each rank; one that needs PyTorch is
skipped (77) if PyTorch is not installed. The page docs/cookbook.md must show each job of the folder.
"""
import json, os, pathlib, re, subprocess, sys, tempfile

source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
name = sys.argv[3]
job = source / "configs/cookbook" / f"{name}.yaml"
STEPS = 24
TOLERANCE = 2e-3  # relative; allows for sums in another order, amplified by 24 steps of Adam
ONE_RANK = ["parallel=null", "launch.ranks=1"]


def run(scratch, folder, *words, environment=None):
    """Runs the job in `folder` of the scratch folder and returns the folder of its last run there."""
    logs = scratch / folder
    done = subprocess.run([binary, "run", job, f"launch.log_dir={logs}", *words], cwd=scratch, capture_output=True, text=True,
                          timeout=600, env=environment)
    if done.returncode != 0:
        sys.exit(f"{job.name} {' '.join(words)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return max((p for p in logs.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def losses(run_folder):
    """Returns the losses by step of the whole run."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return {line["run_step"]: line["loss"] for line in lines if "step" in line and "loss" in line}


def compare(under_plan, one_rank, steps):
    assert sorted(under_plan) == list(steps), f"{job.name}: losses of steps {sorted(under_plan)}, expected {list(steps)}"
    for step, loss in under_plan.items():
        off = abs(loss - one_rank[step]) / abs(one_rank[step])
        assert off < TOLERANCE, f"{job.name}: step {step} has loss {loss}, on one rank {one_rank[step]}"
    first, last = ([one_rank[s] for s in part] for part in (range(1, 5), range(STEPS - 3, STEPS + 1)))
    assert sum(last) < sum(first), f"{job.name}: the loss does not fall: {first} … {last}"


def network(scratch):
    short = [f"train.steps={STEPS}", "train.log_every=1", "train.epochs=null"]
    one_rank = losses(run(scratch, "one_rank", *short, *ONE_RANK))
    compare(losses(run(scratch, "plan", *short)), one_rank, range(1, STEPS + 1))
    print(f"{job.name}: {STEPS} steps with the losses of one rank, {one_rank[1]:.4f} to {one_rank[STEPS]:.4f}")


def resumed(scratch):
    again = re.search(r"--resume (.*)", job.read_text())[1].split()
    words = ["train.log_every=1", "train.checkpoint.every_epochs=null"]
    half = STEPS // 2
    one_rank = losses(run(scratch, "one_rank", *words, f"train.steps={STEPS}", "train.epochs=null", *ONE_RANK))
    run(scratch, "plan", *words, f"train.steps={half}", "train.epochs=null")
    other_plan = [w for w in again if not w.startswith("train.")]
    went_on = run(scratch, "plan", *words, "--resume", *other_plan, f"train.steps={STEPS}", "train.epochs=null")
    compare(losses(went_on), one_rank, range(half + 1, STEPS + 1))
    print(f"{job.name}: steps {half + 1} to {STEPS} under {' '.join(other_plan)}, with the losses of one rank")


def command(scratch):
    environment = dict(os.environ)
    if "torch" in (job.with_suffix(".py")).read_text():
        peers = source / "build/peers/bin"
        environment["PATH"] = f"{peers}:{environment['PATH']}"
        if subprocess.run(["python3", "-c", "import torch"], env=environment, capture_output=True).returncode != 0:
            print(f"{job.name}: skipped, python3 has no PyTorch (./bootstrap peers installs it)")
            sys.exit(77)
    folder = run(scratch, "plan", environment=environment)
    ranks = sorted(folder.glob("rank.*"))
    assert len(ranks) > 1, f"{job.name}: {folder} has the logs of {len(ranks)} ranks"
    for rank in ranks:
        steps = re.findall(r"^step (\d+): loss", (rank / "stdout").read_text(), re.M)
        assert len(steps) > 1 and steps[0] == "1", f"{job.name}: {rank.name} printed the steps {steps}"
    print(f"{job.name}: {len(ranks)} ranks of a PyTorch script")


def main():
    text = job.read_text()
    assert f"configs/cookbook/{name}.yaml" in (source / "docs/cookbook.md").read_text(), f"docs/cookbook.md lacks {job.name}"
    with tempfile.TemporaryDirectory() as scratch:
        (command if re.search(r"^command:", text, re.M) else resumed if "--resume" in text else network)(pathlib.Path(scratch))


main()
