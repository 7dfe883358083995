#!/usr/bin/env python3
"""Injects faults into runs of trainctl at random moments and checks how they end.

  python3 tests/campaign/campaign.py --trainctl build/release/bin/trainctl --faults 200
  python3 tests/campaign/campaign.py --trainctl build/release/bin/trainctl --device cuda --ranks 2,4 --timeout 4 --grace 1 --slack 15

After each fault the run must end with the right exit code and the right first cause, and leave no process,
no listening socket, no shared memory and no memory of a GPU. Prints one row per fault; exits with 1 if one went wrong.
On a quiet machine, --slack also judges the seconds until the end: those of launch.grace or launch.timeout, and the slack.
The same seed gives the same faults (but not the same moments: these depend on the host).
"""

import argparse
import os
import random
import signal
import sys
import time

import faults
from scene import Scene

ROW = "{:>4}  {:<28} {:<8} {:>5}  {:<8} {:>9} {:>5}  {:<22} {:<18} {:>7}  {}"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", required=True)
    parser.add_argument("--faults", type=int, default=len(faults.KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="only this fault")
    parser.add_argument("--kind", help="kinds whose name contains this")
    parser.add_argument("--ranks", default="4,8,16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the ranks of networks; --ranks: no more than GPUs")
    parser.add_argument("--grace", type=float, default=10, help="launch.grace: ranks of a busy machine must end a step within it")
    parser.add_argument("--timeout", type=float, default=10, help="launch.timeout: a rank of a busy machine must not be silent for it")
    parser.add_argument("--slack", type=float, help="judge the seconds too: at most these on top of grace or timeout")
    options = parser.parse_args()
    options.trainctl = os.path.abspath(options.trainctl)
    return options


def problems_of(scene, expected, seconds, options):
    """The deviations from the expected outcome, as text."""
    found = []
    code = scene.launcher.returncode
    if code not in expected.codes:
        found.append(f"exit code {code}")
    cause = scene.result("error.json").get("first_cause", {})
    if expected.rank >= 0 and (cause.get("rank") != expected.rank or cause.get("kind") not in expected.kinds):
        found.append(f"cause: {cause.get('message', 'none')}")
    if options.slack is not None and seconds > expected.seconds + options.slack:
        found.append(f"took {seconds:.1f} s")
    if expected.steps_agree and code > 0:
        steps = scene.last_steps()
        said = scene.result("outcome.json").get("stopped_at_step")
        if steps != {str(said)}:
            found.append(f"stopped after steps {steps}, outcome.json says {said}")
    if len(scene.result("outcome.json").get("restarts", [])) != expected.restarts:
        found.append("outcome.json has the wrong restarts")
    if scene.kind.full_disk and scene.result("outcome.json").get("exit_code") != code:
        found.append("outcome.json was lost")
    return found


def short(cause):
    return f"{cause['rank']} {cause.get('kind', '?')}" if cause else "-"


def inject(index, options):
    """Prints a row; returns whether the outcome was as expected."""
    rng = random.Random(f"{options.seed}/{index}")
    kind, job, when, ranks = faults.plan(index, rng, [int(count) for count in options.ranks.split(",")])
    scene = Scene(options, kind, job, ranks, rng)
    found = ["interrupted"]
    try:
        expected, seconds, found = watch(scene, kind, when, options)
        report(index, scene, when, expected, seconds, found)
    finally:
        scene.clean_up(keep=bool(found))
    return not found


def watch(scene, kind, when, options):
    """Injects a fault into the run and watches its end. Returns what was expected, the seconds until the end, and the deviations."""
    expected, seconds = faults.Expected(set()), 0.0
    try:
        start = time.monotonic()
        expected = kind.inject(scene, when)
        start = max(start, time.monotonic()) if scene.launcher.poll() is None else start
        scene.wait_for_end()
        seconds = time.monotonic() - start
        found = problems_of(scene, expected, seconds, options)
        left = scene.leftovers() if options.slack is None else scene.leftovers(options.grace + options.slack)
        if left:
            found.append("left: " + ", ".join(left))
    except AssertionError as error:
        found = [str(error)]
    return expected, seconds, found


def report(index, scene, when, expected, seconds, found):
    wanted = f"{expected.rank} {'/'.join(expected.kinds)}" if expected.rank >= 0 else "-"
    print(ROW.format(index, scene.kind.name, scene.job, scene.ranks, when, "/".join(map(str, sorted(expected.codes))),
                     str(scene.launcher.poll()), wanted, short(scene.result("error.json").get("first_cause", {})),
                     f"{seconds:.2f}", "; ".join(found) if found else "ok"), flush=True)
    if found:
        print(f"      {scene.folder}\n" + "".join(f"      | {line}\n" for line in scene.notices().splitlines()[-8:]), flush=True)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the run under way is cleaned up
    options = parse_arguments()
    print(ROW.format("#", "fault", "job", "ranks", "when", "code", "got", "cause", "got", "s", "").rstrip())
    numbers = [options.only] if options.only is not None else range(options.faults)
    if options.kind:
        numbers = [n for n in numbers if options.kind in faults.KINDS[n % len(faults.KINDS)].name]
    bad = sum(not inject(index, options) for index in numbers)
    print(f"{len(numbers)} faults, {bad} went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
