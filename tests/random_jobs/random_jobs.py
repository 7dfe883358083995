#!/usr/bin/env python3
"""Random jobs, each run under its plan and on one CPU rank: the losses of both must be the same.

  python3 tests/random_jobs/random_jobs.py --trainctl build/release/bin/trainctl --jobs 300
  python3 tests/random_jobs/random_jobs.py --trainctl build/release/bin/trainctl --device cuda --gpus 4 --ranks 1,2,4 --jobs 1000 --seconds 60

Fails if a legal job crashes, hangs, is not finite while the reference is, differs from the reference's losses by more than TOLERANCE,
or has other bits when run again, or resumed from a checkpoint of a random step; if another plan that resumes from that checkpoint
does not follow the reference (a third of the jobs are run again, and a third resumed; with --resume all are resumed); and if more than
MOST_EXCUSED of the jobs are excused from that:

  refused     `plan` refuses the draft, and another is drawn
  explodes    some steps are not compared, since the reference's loss has grown EXPLODED times by then
  amplifies   the losses differ, but tiny changes of the job (NUDGE) change them as much

Prints what is needed to repeat each failure, the numbers of excuses, and what was refused, by message. Of one seed, job N is always the
same: --only N.
"""

import argparse
import collections
import concurrent.futures
import functools
import math
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time

from job import draw_job
from runs import Failure, call, comparable, difference, digests, of_steps, read_losses, run_losses

# Relative to the largest loss so far. fp32 sums in another order: about 1e-7 per sum, more after norms and over steps. tf32 and bf16
# round each operand to 11 and 8 bits.
TOLERANCE = {"fp32": 2e-5, "tf32": 5e-3, "bf16": 8e-2}
# Some jobs amplify rounding (signs of gradients that cancel, adam's division, norms of nearly equal rows). They also amplify changes of
# the learning rate and of the weight decay of this size, by which such jobs are found.
NUDGE = {"fp32": 1e-6, "tf32": 5e-4, "bf16": 4e-3}
MOST_EXCUSED = 0.05  # of the jobs, rounded up
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/data/digits")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", default="1,2,2,3,4,4,6,8", help="drawn from; on GPUs no more than --gpus")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this job alone")
    parser.add_argument("--kind", choices=("rows", "skips", "other"),
                        help="hybrid_parallel with few rows per rank, tensors that skip stages, or neither; by default all are drawn")
    parser.add_argument("--seconds", type=float, default=1e9, help="no job starts after this many seconds")
    parser.add_argument("--gpus", type=int, default=1, help="each job gets as many as it needs; jobs that fit run at the same time")
    parser.add_argument("--share", type=int, default=1, help="jobs at once on one GPU")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at once on the CPU")
    parser.add_argument("--emulated", help="build/release/bin/test_cuda_emulated: as --device cuda, on emulated GPUs")
    parser.add_argument("--keep", default="random_jobs.failed", help="folder for the jobs that failed")
    parser.add_argument("--resume", action="store_true", help="each job is saved at a random step and resumed")
    parser.add_argument("--jax", metavar="DUMP_JOB", help="compare with JAX (tests/equivalence/jax) in place of one rank")
    options = parser.parse_args()
    options.trainctl = os.path.abspath(options.trainctl)
    if options.emulated:
        options.emulated, options.device = os.path.abspath(options.emulated), "cuda"
    options.ranks = [int(count) for count in options.ranks.split(",")]
    return options


class Gpus:
    """Slots on the GPUs; a job waits for one slot on as many GPUs as it has ranks."""

    def __init__(self, count, share):
        self.places, self.changed = [share] * count, threading.Condition()

    def free(self):
        return sorted((gpu for gpu, places in enumerate(self.places) if places), key=lambda gpu: -self.places[gpu])

    def take(self, count):
        with self.changed:
            self.changed.wait_for(lambda: len(self.free()) >= count)
            taken = self.free()[:count]
            for gpu in taken:
                self.places[gpu] -= 1
            return taken

    def give(self, taken):
        with self.changed:
            for gpu in taken:
                self.places[gpu] += 1
            self.changed.notify_all()


def emulated_losses(options, path):
    with tempfile.TemporaryDirectory(prefix="trainctl-random-") as folder:
        losses = f"{folder}/losses.jsonl"
        code, output = call([options.emulated, "-tc=the job of the file*"], {**os.environ, "TRAINCTL_JOB": path, "TRAINCTL_LOSSES": losses})
        if code != 0:
            raise Failure(f"exit code {code} of the emulator\n{output[-3000:]}")
        return read_losses(losses)


def nudged(job, size):
    """Overrides that slightly change the learning rate, or decay each weight, or change adam's eps."""
    optimizer = job.fields["optimizer"]
    rate = optimizer["learning_rate"]
    path = "optimizer.learning_rate" + (".base" if isinstance(rate, dict) else "")
    base = rate["base"] if isinstance(rate, dict) else rate
    yield [f"{path}={base * (1 + 10 * size)!r}"]
    yield [f"optimizer.weight_decay={optimizer.get('weight_decay', 0) + size!r}"]
    if "eps" in optimizer:
        yield [f"optimizer.eps={optimizer['eps'] * (1.5 if optimizer['eps'] < 1e-5 else 1 + size)!r}"]
    if job.fields["launch"]["device"] == "cuda":  # sums in another order; on CPUs the test itself covers that
        yield ["launch.ranks=2", job.reference_overrides()[-1].replace("{", "{mode: semi_auto_parallel, ")]


class Campaign:
    def __init__(self, options):
        self.options = options
        self.sizes = (0.05, 0.0) if options.emulated else (0.25, 0.08) if options.device == "cuda" else (0.25, 0.0)
        self.refusals = collections.Counter()
        self.results = collections.Counter()
        self.excused = collections.Counter()
        self.worst = {}
        self.gpus = Gpus(options.gpus, options.share) if options.device == "cuda" and not options.emulated else None
        self.folder = tempfile.mkdtemp(prefix="trainctl-random-jobs-")
        self.lock = threading.Lock()
        self.end = time.monotonic() + options.seconds
        self.judge = functools.partial(run_losses, options.trainctl)
        if options.jax:
            sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../equivalence/jax"))
            from reference import reference_losses
            self.judge = functools.partial(reference_losses, os.path.abspath(options.jax))

    def refuse(self, output):
        line = next((l for l in output.splitlines() if ": " in l), output).split(": ", 1)[-1]
        text = re.sub(r"\b[a-z_]+\d+\b", "L", line)
        text = re.sub(r"\d+", "N", text)
        with self.lock:
            self.refusals[text] += 1
            self.excused["refused"] += 1

    def draw(self, index):
        """A legal job, its file and its reference's file."""
        for attempt in range(200):
            rng = random.Random(f"{self.options.seed}/{index}/{attempt}")
            job = draw_job(rng, self.options.device, self.options.ranks, DIGITS, *self.sizes, kind=self.options.kind)
            path, reference = f"{self.folder}/{index}.yaml", f"{self.folder}/{index}.reference.yaml"
            with open(path, "w") as file:
                file.write(job.text())
            with open(reference, "w") as file:
                file.write(job.text(job.reference_fields))
            code, output = call([self.options.trainctl, "plan", path])
            if code == 0:
                return job, path, reference, rng
            if code != 2:
                raise Failure(f"exit code {code} of plan\n{output[-3000:]}")
            self.refuse(output)
        raise Failure("refused 200 times")

    def run_plan(self, path, job, overrides=()):
        if self.options.emulated:
            return emulated_losses(self.options, path)
        if not self.gpus:
            return run_losses(self.options.trainctl, path, overrides)
        taken = self.gpus.take(job.ranks)
        try:
            return run_losses(self.options.trainctl, path, overrides, {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, taken))})
        finally:
            self.gpus.give(taken)

    def compare(self, job, path, reference_path, rng):
        options = self.options
        reference = self.judge(reference_path, job.reference_overrides())
        if not reference:
            raise Failure("no losses")
        found = self.run_plan(path, job)
        if "validation" in job.fields and not options.emulated and all(isinstance(step, int) for step in found):
            raise Failure(f"no validation: {found}")
        self.run_again(job, path, reference_path, rng, found, reference)
        if options.jax or options.emulated:  # these references have no validations
            found = of_steps(found)
        if options.emulated:
            found = {step: found[step] for step in reference}
        if options.jax and found and max(found) == max(reference):  # it also has the steps that are not logged
            reference = {step: reference[step] for step in found}
        if sorted(found) != sorted(reference):
            raise Failure(f"other steps: {sorted(found)}, the reference has {sorted(reference)}")
        steps = comparable(reference)
        return self.follow(job, reference_path, found, reference, steps)

    def run_again(self, job, path, reference_path, rng, found, reference):
        """A third of the jobs is run a second time, and a third saved at a random step and resumed: the same bits."""
        lot = 0.5 if self.options.resume else rng.random()
        if lot < 0.33:
            again = self.run_plan(path, job)
            if repr(again) != repr(found):  # works for nan too
                raise Failure(f"other bits when run again: {found} and {again}")
        elif lot < 0.67 and not self.options.emulated and "validation" not in job.fields:
            with tempfile.TemporaryDirectory(prefix="trainctl-random-") as folder:
                self.resume(job, path, reference_path, f"{folder}/saved", rng, found, reference)

    def resume(self, job, path, reference_path, folder, rng, found, reference):
        at, last = rng.randint(1, max(reference)), max(reference)
        saves = [f"train.checkpoint={{every_steps: {at}, keep: 1000, dir: {folder}}}"]
        saved = self.run_plan(path, job, saves)
        if repr(saved) != repr(found):
            raise Failure(f"other bits when it saves every {at} steps: {found} and {saved}")
        names = os.listdir(folder)
        if f"step_{at:08}" not in names or f"step_{last:08}" not in names:
            raise Failure(f"saved every {at} of {last} steps, and left {sorted(names)}")
        if at == last:
            return
        resume = ["--resume-from", f"{folder}/step_{at:08}"]
        again = self.run_plan(path, job, [*resume, f"train.checkpoint={{every_steps: {last}, dir: {folder}.again}}"])
        expected = {step: loss for step, loss in found.items() if step > at}
        if repr(again) != repr(expected):
            raise Failure(f"other bits when resumed after step {at}: {found} and {again}")
        if not os.path.isdir(f"{folder}.again/step_{last:08}"):
            raise Failure(f"resumed after step {at}, it does not save at its end: {sorted(os.listdir(f'{folder}.again'))}")
        if digests(f"{folder}/step_{last:08}") != digests(f"{folder}.again/step_{last:08}"):
            raise Failure(f"resumed after step {at}, it has the same losses, and other weights at the end")
        if job.fields.get("parallel", {}).get("mode") == "hybrid_parallel" or self.options.jax:
            return  # the reference has other shapes, or saves nothing
        plan = self.other_plan(job, reference_path, rng)
        moved = run_losses(self.options.trainctl, reference_path, [*plan, *resume])
        steps = [step for step in comparable(reference) if step > at]
        self.follow(job, reference_path, moved, {step: reference[step] for step in reference if step > at}, steps,
                    f"resumed after step {at} with {' '.join(plan)}, ")
        if self.gpus and last - at > 1:
            self.there_and_back(job, path, reference_path, f"{folder}.cpu", at, rng.randint(at + 1, last - 1), reference)

    def there_and_back(self, job, path, reference_path, folder, at, back, reference):
        """The reference saves on a CPU after step `at`, the job resumes from there on GPUs, and the reference from what that saved after
        step `back`."""
        one, on_gpus = job.reference_overrides(), f"{folder}.on_gpus"
        run_losses(self.options.trainctl, reference_path, [*one, f"train.checkpoint={{every_steps: {at}, keep: 1000, dir: {folder}}}"])
        there = self.run_plan(path, job, ["--resume-from", f"{folder}/step_{at:08}",
                                          f"train.checkpoint={{every_steps: {back}, keep: 1000, dir: {on_gpus}}}"])
        again = run_losses(self.options.trainctl, reference_path, [*one, "--resume-from", f"{on_gpus}/step_{back:08}"])
        found = {**{step: loss for step, loss in there.items() if step <= back}, **again}
        steps = [step for step in comparable(reference) if step > at]
        self.follow(job, reference_path, found, {step: reference[step] for step in reference if step > at}, steps,
                    f"from a CPU to GPUs after step {at} and back after step {back}, ")

    def other_plan(self, job, reference_path, rng):
        """Overrides of the reference's file: any ranks, stages and shards on CPUs that `plan` takes, or one rank."""
        one = job.reference_overrides()
        for _ in range(6):
            mode, stages, level = rng.choice(["data_parallel", "semi_auto_parallel"]), rng.choice([1, 1, 2, 3]), rng.randint(0, 3)
            parallel = f"mode: {mode}, stages: {stages}, optimizer_shard: {{level: {level}, min_kb: 0}}, "
            words = [f"launch.ranks={rng.choice(self.options.ranks)}", *one[1:-1], one[-1].replace("{", "{" + parallel, 1)]
            if call([self.options.trainctl, "plan", reference_path, *words])[0] == 0:
                return words
        return one

    def follow(self, job, reference_path, found, reference, steps, when=""):
        worst, at = difference(found, reference, steps)
        precision = job.precision if self.options.device == "cuda" else "fp32"  # CPUs take tf32 as fp32
        tolerance = TOLERANCE[precision]
        if worst <= tolerance:
            with self.lock:
                self.worst[precision] = max(worst, self.worst.get(precision, 0))
                self.excused["explodes"] += len(steps) < len(reference)
            return "same"
        moved = 0.0
        for nudge in nudged(job, NUDGE[precision]):
            other = self.judge(reference_path, job.reference_overrides() + nudge)
            moved = max(moved, difference(other, reference, steps)[0])
        if moved > tolerance / 3 and worst < 30 * moved:
            with self.lock:
                self.excused["amplifies"] += 1
            return "excused"
        raise Failure(f"{when}the loss is {worst:.2g} apart at step {at} (moved by next to nothing: {moved:.2g}):\n"
                      f"  {found}\n  {reference}")

    def run(self, index):
        if time.monotonic() > self.end:
            return
        job = None
        try:
            job, path, reference, rng = self.draw(index)
            result = self.compare(job, path, reference, rng)
        except Failure as failure:
            result = "FAILED"
            self.tell(index, job, str(failure))
        with self.lock:
            self.results[result] += 1
        for name in (f"{index}.yaml", f"{index}.reference.yaml"):
            if os.path.exists(f"{self.folder}/{name}"):
                os.remove(f"{self.folder}/{name}")

    def tell(self, index, job, text):
        options = self.options
        os.makedirs(options.keep, exist_ok=True)
        for name in (f"{index}.yaml", f"{index}.reference.yaml"):
            if os.path.exists(f"{self.folder}/{name}"):
                shutil.copy(f"{self.folder}/{name}", f"{options.keep}/{options.seed}.{name}")
        ranks = ",".join(map(str, options.ranks))
        gpus = f" --emulated {options.emulated}" if options.emulated else f" --gpus {options.gpus}" if options.device == "cuda" else ""
        gpus += " --resume" if options.resume else ""
        with self.lock:
            print(f"\njob {index} of seed {options.seed}: {text}")
            print(f"  repeat: random_jobs.py --trainctl {options.trainctl} --device {options.device} --ranks {ranks}{gpus} "
                  f"--seed {options.seed} --only {index}")
            if job:  # else the file has the last drawn job
                file = f"{options.keep}/{options.seed}.{index}"
                quoted = " ".join(f"'{word}'" for word in job.reference_overrides())
                print(f"  by hand: trainctl run {file}.yaml; trainctl run {file}.reference.yaml {quoted}")
                print(job.text(), flush=True)

    def report(self, seconds):
        for text, count in self.refusals.most_common():
            print(f"refused {count:>4}  {text}")
        worst = ", ".join(f"{precision} {value:.1g}" for precision, value in sorted(self.worst.items()))
        jobs = sum(self.results.values())
        counts = ", ".join(f"{count} {result}" for result, count in sorted(self.results.items()))
        print(f"{jobs} jobs in {seconds:.0f} s: {counts}; largest difference: {worst or '-'}")
        excused = ", ".join(f"{self.excused[reason]} {reason}" for reason in ("refused", "explodes", "amplifies"))
        most = math.ceil(MOST_EXCUSED * jobs)
        print(f"excused: {excused}; at most {most} may be")
        return self.results["FAILED"] == 0 and sum(self.excused.values()) <= most


def main():
    options = parse_arguments()
    campaign, start = Campaign(options), time.monotonic()
    numbers = [options.only] if options.only is not None else range(options.jobs)
    workers = options.at_once if options.device == "cpu" or options.emulated else options.gpus * options.share + 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(campaign.run, numbers))
    good = campaign.report(time.monotonic() - start)
    shutil.rmtree(campaign.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
