"""Runs tests/update_plans in a small tree of its own: which jobs it reports, and which files it does not change.

    python3 tests/plan/update_plans_test.py build/release/bin/trainctl
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
JOBS = ["configs/bn_matmul.yaml", "templates/command.yaml", "tests/jobs/mlp.yaml", "templates/name_maps/gpt2.yaml"]


class Tree:
    """Two jobs with networks, one with a command, and a file that is no job."""

    def __init__(self, folder, trainctl):
        self.root, self.trainctl = pathlib.Path(folder).resolve() / "tree", pathlib.Path(trainctl).resolve()
        for job in JOBS:
            self.path(job).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / job, self.path(job))
        shutil.copy(SOURCE / "tests/update_plans", self.path("tests/update_plans"))

    def path(self, name):
        return self.root / name

    def plans(self):
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*.plan")}

    def run(self, *words, trainctl=None, cwd=None, **environment):
        return subprocess.run([sys.executable, self.path("tests/update_plans"), *words, "--trainctl", trainctl or self.trainctl],
                              cwd=cwd or self.root, env={**os.environ, **environment}, capture_output=True, text=True)

    def check(self, *words, **options):
        """The output, and the jobs that are named."""
        done = self.run("--check", *words, **options)
        assert done.stderr == "", done.stderr
        lines = done.stdout.splitlines()
        named = {}
        for line in lines:
            if re.match(r"  \S", line) and line.split(":")[0].strip() in {*JOBS, *self.plans()}:
                name, _, what = line.strip().partition(": ")
                named[name] = what
        assert done.returncode == (1 if named else 0), done.stdout
        return done.stdout, named

    def changed_trainctl(self, command, edit):
        """A trainctl that differs in what `command` prints."""
        file = self.path("changed_trainctl")
        file.write_text(f"""#!/bin/sh
if [ "$1 $2" = '{command}' ]; then
  text=$('{self.trainctl}' "$@") || exit $?
  printf '%s\\n' "$text" | sed '{edit}'
else
  exec '{self.trainctl}' "$@"
fi
""")
        file.chmod(0o755)
        return file


def same_plans_everywhere(tree):
    done = tree.run()
    assert done.returncode == 0, done.stdout + done.stderr
    first = tree.plans()
    assert sorted(first) == ["configs/bn_matmul.plan", "templates/command.plan", "tests/jobs/mlp.plan"], sorted(first)
    assert str(tree.root) not in "".join(first.values())
    machines = tree.path("home/trainctl/machines")
    machines.mkdir(parents=True)
    (machines / "cpu.json").write_text("not a machine")
    hostile = {"XDG_CONFIG_HOME": str(tree.path("home")), "OMP_NUM_THREADS": "7", "TRAINCTL_SMALL_STEP": "off", "CUDA_VISIBLE_DEVICES": ""}
    for plan in first:
        tree.path(plan).unlink()
    done = tree.run(cwd="/", **hostile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.plans() == first, "a plan depends on the folder, or on the environment"
    assert tree.check()[1] == {}
    assert "0 of 3 written" in tree.run().stdout


def a_changed_program_is_named(tree):
    changed = tree.changed_trainctl("show program", "s/all_gather/all_divide/g")
    output, named = tree.check(trainctl=changed)
    assert list(named) == ["configs/bn_matmul.yaml"], output
    assert named["configs/bn_matmul.yaml"] == "the plan; show program of ranks 0-3 (cpu, cuda)", named
    assert "-  ranks 0-3: " in output and "+  ranks 0-3: " in output and "all_divide 2" in output, output  # instructions of a step
    assert f"tests/update_plans --trainctl {changed}" in output, output


def a_change_that_only_a_digest_shows_is_named(tree):
    changed = tree.changed_trainctl("show program", "/^rank 2:/s/arena/area/")
    output, named = tree.check(trainctl=changed)
    assert named == {"configs/bn_matmul.yaml": "show program of rank 2 (cpu, cuda)"}, output
    assert "@@" not in output, output
    changed = tree.changed_trainctl("plan --json", "s/\"max_restarts\": 0/\"max_restarts\": 1/")
    output, named = tree.check(trainctl=changed)
    assert named == {"configs/bn_matmul.yaml": "plan --json (cpu, cuda)", "templates/command.yaml": "plan --json",
                     "tests/jobs/mlp.yaml": "plan --json (cpu, cuda)"}, output
    assert "--texts" in output, output
    texts = tree.path("texts")
    tree.check("configs", "--texts", str(texts))
    assert (texts / "configs/bn_matmul/cuda/show_program_rank_3").read_text().startswith("rank 3: "), sorted(texts.rglob("*"))


def only_the_changed_plans_are_rewritten(tree):
    before, mlp = tree.plans(), tree.path("tests/jobs/mlp.yaml")
    text = mlp.read_text()
    mlp.write_text(text.replace("batch: 24", "batch: 48"))
    output, named = tree.check()
    assert list(named) == ["tests/jobs/mlp.yaml"], output
    assert tree.check("configs", "templates/command.yaml")[1] == {}
    assert tree.run().returncode == 0
    after = tree.plans()
    assert [plan for plan in after if after[plan] != before[plan]] == ["tests/jobs/mlp.plan"]
    assert tree.check()[1] == {}
    mlp.write_text(text)
    tree.run()
    assert tree.plans() == before


def plans_without_jobs_and_jobs_without_plans_are_named(tree):
    golden = tree.path("configs/bn_matmul.plan")
    golden.rename(tree.path("configs/gone.plan"))
    output, named = tree.check()
    assert named == {"configs/bn_matmul.yaml": "has no golden plan", "configs/gone.plan": "is the golden plan of no job"}, output
    assert tree.run().returncode == 0
    assert golden.exists() and not tree.path("configs/gone.plan").exists()


def a_job_that_cannot_be_planned_is_named(tree):
    job = tree.path("tests/jobs/mlp.yaml")
    text, golden = job.read_text(), tree.path("tests/jobs/mlp.plan").read_text()
    job.write_text(text.replace("loss:", "los:"))
    output, named = tree.check()
    assert named == {"tests/jobs/mlp.yaml": "cannot be planned"} and "los" in output, output
    assert tree.run().returncode == 1
    assert tree.path("tests/jobs/mlp.plan").read_text() == golden
    job.write_text(text)


def a_job_whose_data_is_other_files_of_the_tree_is_refused(tree):
    job = tree.path("tests/jobs/mlp.yaml")
    text = job.read_text()
    job.write_text(text + "# ../../docs is only mentioned\n")
    assert tree.check()[1] == {}
    job.write_text(text.replace("type: random,", "type: text, path: '../../docs/*.md',"))
    output, named = tree.check()
    assert named == {"tests/jobs/mlp.yaml": "cannot be planned"} and "it reads docs/*.md" in output, output
    job.write_text(text)


def excluded_folders_have_no_job(tree):
    job = tree.path("templates/name_maps/job.yaml")
    shutil.copy(SOURCE / "tests/jobs/mlp.yaml", job)
    done = tree.run("--check")
    assert done.returncode == 1 and "templates/name_maps/job.yaml looks like a job" in done.stderr, done.stderr
    job.unlink()


def main():
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder, sys.argv[1])
        for rule in (same_plans_everywhere, a_changed_program_is_named, a_change_that_only_a_digest_shows_is_named,
                     only_the_changed_plans_are_rewritten, plans_without_jobs_and_jobs_without_plans_are_named,
                     a_job_that_cannot_be_planned_is_named,
                     a_job_whose_data_is_other_files_of_the_tree_is_refused, excluded_folders_have_no_job):
            rule(tree)
            print(f"{rule.__name__.replace('_', ' ')}: yes")


if __name__ == "__main__":
    main()
