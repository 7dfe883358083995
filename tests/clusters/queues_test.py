"""The batch scripts of PBS and LSF, run by substitutes of qsub and bsub that set the environment of those queues.

    python3 tests/clusters/queues_test.py TRAINCTL [--only NAME]

There is no PBS or LSF here: the lines of options are checked against the grammar of their manuals, `bash -n` reads the scripts, and the
substitutes run the body on this host.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import judge
from judge import JOB, PLAIN, require

PATIENCE = 600  # seconds after which something hangs
REQUEUE = 75
# The options of qsub (PBS Professional 2022, Reference Guide) and bsub (LSF 10.1, Command Reference) that scripts use.
PBS_OPTIONS = {"-N": r"[A-Za-z][\w.+-]{0,229}", "-j": "oe|eo|n", "-o": r"\S+", "-q": r"[\w@.-]+", "-A": r"\S+", "-r": "[yn]", "-m": r"[abejn]+",
               "-l": r"select=\d+(:\w+=\w+)*|place=\w+(:\w+)*|walltime=(\d+|\d+:\d\d(:\d\d)?)"}
LSF_OPTIONS = {"-J": r"[\w.-]{1,4094}", "-o": r"\S+", "-n": r"\d+", "-R": r'"[^"]+"', "-W": r"(\d+:)?\d+(/\S+)?", "-wa": r"USR2 -wt (\d+:)?\d+",
               "-q": r"[\w.-]+", "-P": r"\S+", "-r": "", "-rn": "", "-Q": r'"\d+( \d+)*"', "-gpu": r'"[^"]+"', "-x": ""}


def eventually(holds):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())


def options_of(script, word, grammar):
    """{option: [values]} of the lines that begin with #PBS or #BSUB, which the queue reads until the first command."""
    found = {}
    for line in script.read_text().splitlines():
        if line and not line.startswith("#"):
            break
        if not line.startswith(f"#{word} "):
            continue
        option, _, value = line[len(word) + 2:].partition(" ")
        require(option in grammar and re.fullmatch(grammar[option], value), line)
        found.setdefault(option, []).append(value)
    return found


class Scene:
    def __init__(self, trainctl, folder):
        self.trainctl, self.folder = trainctl, pathlib.Path(folder)
        self.logs = self.folder / "logs"
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.submitted = self.folder / "submitted"
        # qsub in a job notes what it was asked to submit.
        qsub = self.bin / "qsub"
        qsub.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.submitted}\necho 2.server\n')
        qsub.chmod(0o755)

    def render(self, target, *fields):
        out = self.folder / f"{target}.files"
        said = subprocess.run([self.trainctl, "render", JOB, "-o", out, f"launch.target={target}", f"launch.log_dir={self.logs}", *fields],
                              capture_output=True, text=True, check=False)
        require(said.returncode == 0, said.stdout + said.stderr)
        script = out / f"job.{target}"
        read = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        require(read.returncode == 0, read.stderr)
        return script

    def start(self, script, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PBS_", "LSB_", "SLURM_", "OMPI_", "PMI", "TRAINCTL_"))}
        self.output = self.folder / "output"
        with open(self.output, "a") as output:
            return subprocess.Popen(["bash", script], env={**clean, "PATH": f"{self.bin}:{clean['PATH']}", **environment}, stdout=output,
                                    stderr=output, cwd=self.folder, start_new_session=True)

    def steps(self, run):
        return max(judge.losses(self.logs / str(run)), default=0)

    def begun(self, job, run):
        require(eventually(lambda: self.steps(run) >= 20 or job.poll() is not None) and job.poll() is None, self.output.read_text()[-2000:])

    def end(self, job):
        try:
            return job.wait(PATIENCE)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


TRAIN = PLAIN.split() + ["launch.ranks=2", "train.checkpoint=auto", "train.steps=1000000", "train.epochs=1000000"]


def pbs_environment(scene, job):
    nodes = scene.folder / "nodes"
    nodes.write_text("localhost\nlocalhost\n")
    return {"PBS_JOBID": job, "PBS_NODEFILE": str(nodes), "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_O_WORKDIR": str(scene.folder)}


def pbs(scene):
    """The warning before the time limit saves and submits the script again, and the next job resumes."""
    script = scene.render("pbs", *TRAIN, "launch.pbs.time=1:00:00", "launch.pbs.queue=gpu", "launch.pbs.account=lab", "launch.pbs.gpus_per_node=0",
                          "launch.pbs.extra=[-m abe]")
    options = options_of(script, "PBS", PBS_OPTIONS)
    require(options["-l"] == ["select=1:ncpus=2:mpiprocs=1", "place=scatter", "walltime=1:00:00"], options)
    require(options["-q"] == ["gpu"] and options["-A"] == ["lab"] and options["-r"] == ["y"] and options["-m"] == ["abe"], options)
    timer = int(re.search(r"sleep (\d+) &&", script.read_text()).group(1))
    require(0 < timer < 3600 - 59, f"the warning is at least a minute before the limit: {timer}")
    job = scene.start(script, **pbs_environment(scene, "1.server"))
    scene.begun(job, 1)
    os.kill(job.pid, signal.SIGUSR2)  # as the script's timer does
    require(scene.end(job) == REQUEUE, scene.output.read_text()[-2000:])
    asked = scene.submitted.read_text().split("\n")
    require(asked[:4] == ["-W", "depend=afterany:1.server", "-v", "TRAINCTL_QUEUE_JOB=1.server"] and asked[4] == str(script), asked)
    stopped = scene.steps(1)
    job = scene.start(script, **pbs_environment(scene, "2.server"), TRAINCTL_QUEUE_JOB="1.server")
    scene.begun(job, 2)
    require("has run before: resuming from run 1" in scene.output.read_text(), scene.output.read_text()[-2000:])
    first = min(judge.losses(scene.logs / "2"))
    require(first == stopped + 1, f"run 2 begins with step {first}, run 1 ended after {stopped}")
    scene.submitted.unlink()
    job.terminate()  # qdel: the job is not submitted again
    require(scene.end(job) == 143 and not scene.submitted.exists(), scene.output.read_text()[-2000:])
    return f"stopped after step {stopped}, resumed with step {first}"


def lsf(scene):
    """LSF's warning saves and ends with the code of -Q, and the job that LSF starts again resumes."""
    script = scene.render("lsf", *TRAIN, "launch.lsf.time=1:00", "launch.lsf.queue=normal", "launch.lsf.account=lab", "launch.lsf.extra=[-x]")
    options = options_of(script, "BSUB", LSF_OPTIONS)
    require(options["-n"] == ["2"] and options["-R"] == ['"span[ptile=2]"'] and options["-W"] == ["1:00"], options)
    require(options["-Q"] == [f'"{REQUEUE}"'] and "-r" in options and "-x" in options and "-rn" not in options, options)
    environment = {"LSB_JOBID": "7", "LSB_JOBINDEX": "0", "LSB_HOSTS": "localhost localhost"}
    job = scene.start(script, **environment)
    scene.begun(job, 1)
    os.killpg(job.pid, signal.SIGUSR2)  # LSF signals all processes of the job
    require(scene.end(job) == REQUEUE, scene.output.read_text()[-2000:])
    stopped = scene.steps(1)
    job = scene.start(script, **environment)
    scene.begun(job, 2)
    first = min(judge.losses(scene.logs / "2"))
    require(first == stopped + 1, f"run 2 begins with step {first}, run 1 ended after {stopped}")
    job.terminate()
    require(scene.end(job) == 143, scene.output.read_text()[-2000:])
    return f"stopped after step {stopped}, resumed with step {first}"


def not_requeued(scene):
    """A job that saves nothing, or that must not be requeued, asks for none of it."""
    for fields in (["train.checkpoint=none"], ["train.checkpoint=auto", "launch.pbs.requeue=false", "launch.lsf.requeue=false"]):
        options = options_of(scene.render("pbs", *PLAIN.split(), *fields), "PBS", PBS_OPTIONS)
        require(options["-r"] == ["n"], options)
        options = options_of(scene.render("lsf", *PLAIN.split(), *fields), "BSUB", LSF_OPTIONS)
        require("-rn" in options and "-Q" not in options and "-W" not in options, options)
    bad = subprocess.run([scene.trainctl, "render", JOB, "launch.target=pbs", "launch.pbs.time=30", "-o", scene.folder / "bad"], capture_output=True,
                         text=True, check=False)
    require(bad.returncode == 2 and "leaves no time to train" in bad.stderr, bad.stderr)
    return "neither -r nor -Q"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainctl", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--only")
    options = parser.parse_args()
    for case in (pbs, lsf, not_requeued):
        if options.only in (None, case.__name__):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{case.__name__}: {case(Scene(options.trainctl, folder))}", flush=True)


main()
