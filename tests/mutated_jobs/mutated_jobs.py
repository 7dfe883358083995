#!/usr/bin/env python3
"""Mutated jobs, each given to `check`, `plan` and `run`.

  python3 tests/mutated_jobs/mutated_jobs.py --trainctl build/release/bin/trainctl --jobs 2000

A job of this tree is mutated (mutations.py). It must then be refused, with a position in the file and the next step, or be run:

  check     exits with 0, 2 or 3; an error of the job names the file; no control character reaches the output
  plan      agrees with check
  run       refuses immediately what check refuses
            trains what check accepts for two steps (or runs its command), and never reports an error of the job; only a command may have
            a rank that fails. A run that still runs after RUN_S is asked to stop, and must end

A command that takes longer than PATIENCE hangs. On a quiet machine, --limit 5 allows `check`, `plan`, a refusal and a stop 5 s each.

Prints a row for each deviation, with the mutated job's path (kept under --keep). With the same seed, job N is always the same: --only N.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mutations import mutate

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds after which something hangs
RUN_S = 8
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
DONE, WRONG_JOB, WRONG_MACHINE, RANK_FAILED = 0, 2, 3, 5
STOPPED = (130, 143)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only this job")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--limit", type=float, default=PATIENCE, help="seconds that anything but training may take")
    parser.add_argument("--keep", default="mutated_jobs.failed", help="folder for the jobs that deviate")
    options = parser.parse_args()
    options.trainctl = os.path.abspath(options.trainctl)
    return options


def jobs_of(*folders):
    """(folder, text) of each job there."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).glob("*.yaml"))
    return [(path.parent, path.read_text(errors="surrogateescape")) for path in paths]


class Outcome:
    def __init__(self, code, output, seconds, late=False):
        self.code, self.output, self.seconds, self.late = code, output, seconds, late


def call(words, options, patience):
    """Runs trainctl; after `patience` seconds it is asked to stop, and later than the limit it is killed (late)."""
    start = time.monotonic()
    with subprocess.Popen([options.trainctl, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="surrogateescape", start_new_session=True) as process:
        late = False
        try:
            output, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=options.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, late = process.communicate()[0], True
    return Outcome(process.returncode, output, time.monotonic() - start, late)


def place(output, path):
    return path.name in output or str(path) in output


def deviations_of_reader(name, outcome, path, options):
    found = []
    if outcome.late or outcome.seconds > options.limit:
        found.append(f"{name} took {outcome.seconds:.1f} s")
    elif outcome.code not in (DONE, WRONG_JOB, WRONG_MACHINE):
        found.append(f"{name} ended with {outcome.code}")
    if outcome.code == WRONG_JOB and not place(outcome.output, path):
        found.append(f"{name} does not name the file")
    if CONTROL.search(outcome.output):
        found.append(f"{name} prints control characters")
    return found


def deviations_of_run(outcome, checked, is_command, options):
    if outcome.late:
        return ["run does not end"]
    if checked != DONE:
        slow = [f"run took {outcome.seconds:.1f} s to refuse"] if outcome.seconds > options.limit else []
        return slow + ([] if outcome.code == checked else [f"run ended with {outcome.code}, check with {checked}"])
    allowed = {DONE, WRONG_MACHINE, *STOPPED} | ({RANK_FAILED} if is_command or "loss is" in outcome.output else set())
    return [] if outcome.code in allowed else [f"check accepts, run ended with {outcome.code}"]


def judge(index, jobs, parts, options, scratch):
    """(mutations, path, exit codes, deviations)"""
    draw = random.Random(f"{options.seed}:{index}")
    folder, text = draw.choice(jobs)
    text, names = mutate(draw, text, parts)
    # next to the original's data: paths in a job are relative to its file
    here = scratch / str(index)
    here.mkdir()
    for entry in folder.iterdir():
        if entry.is_dir() or entry.suffix == ".py":
            (here / entry.name).symlink_to(entry)
    path = here / f"mutated{index}.yaml"
    path.write_text(text, errors="surrogateescape")
    check = call(["check", str(path)], options, options.limit)
    found = deviations_of_reader("check", check, path, options)
    plan = call(["plan", str(path)], options, options.limit)
    found += deviations_of_reader("plan", plan, path, options)
    if plan.code != check.code:
        found.append(f"plan ended with {plan.code}, check with {check.code}")
    is_command = re.search(r"^ *[\"']?command", text, re.MULTILINE) is not None
    logs = [f"launch.log_dir={here}/logs"] if check.code == DONE else []
    short = ["train.steps=2"] if check.code == DONE and not is_command else []
    run = call(["run", str(path), *logs, *short], options, RUN_S if check.code == DONE else options.limit)
    found += deviations_of_run(run, check.code, is_command, options)
    said = "\n".join(f"--- {name}: {one.code}, {one.seconds:.1f} s\n{one.output[-2000:]}" for name, one in
                     (("check", check), ("plan", plan), ("run", run)))
    return names, path, (check.code, run.code), found, said


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    options = parse_arguments()
    jobs, keep = jobs_of("configs", "templates", "tests/jobs"), pathlib.Path(options.keep)
    parts = [text for _, text in jobs + jobs_of("tests/bad_specs", "tests/bad_specs/plan")]
    codes, failed = collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="trainctl-mutated-") as scratch, \
            concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        indices = [options.only] if options.only is not None else range(options.jobs)
        for index, (names, path, ended, found, said) in zip(indices, pool.map(lambda i: judge(i, jobs, parts, options, pathlib.Path(scratch)), indices)):
            codes[ended] += 1
            if found:
                failed += 1
                keep.mkdir(exist_ok=True)
                shutil.copy(path, keep)
                (keep / f"{path.stem}.txt").write_text(said, errors="surrogateescape")
                print(f"{index:>6}  {', '.join(names):<40}  {'; '.join(found)}", flush=True)
            shutil.rmtree(path.parent)
    for (checked, ran), count in codes.most_common():
        print(f"{count:>6}  check {checked}, run {ran}")
    if not any(checked == DONE for checked, _ in codes) and options.only is None:
        sys.exit("no mutated job was accepted: nothing was run")
    print(f"{failed} of {sum(codes.values())} deviate" + (f"; see {keep}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
