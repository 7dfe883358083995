"""Runs over ssh on test hosts (network.py): the same numbers as one rank, and what happens when something breaks.

    python3 tests/hosts/hosts_test.py TRAINCTL [--only NAME] [--keep FOLDER] [--times]

--times, on a quiet machine, also judges how soon a loss is noticed, and how soon the others train again.
Needs root, since it makes network namespaces; exits with 77 and the reason where it cannot.
"""
import argparse
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import network
from elastic_cases import elastic, elastic_rank, elastic_saved, elastic_within_host, local_steps_elastic, parted_elastic, too_few
from failure_cases import cut_cable, cut_for_good, killed_agent, killed_launcher, killed_rank, parted, restarted
from run_cases import changed_key, checked_first, copied, interrupted, plugins, program, same_numbers, uneven_hosts, unreached
from scene import Scene
from training_cases import audited, experts, local_steps, saved_and_resumed, saved_by_signal, straggler

CASES = [same_numbers, unreached, parted, parted_elastic, uneven_hosts, saved_and_resumed, saved_by_signal, restarted, elastic, elastic_saved, elastic_within_host, elastic_rank, audited, experts, straggler, local_steps, local_steps_elastic, too_few, checked_first, copied, plugins, program, killed_rank, killed_agent, killed_launcher, cut_cable, cut_for_good, interrupted, changed_key]


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only", action="append")
    parser.add_argument("--keep", help="a folder for logs and trees, not deleted")
    parser.add_argument("--times", action="store_true", help="judge seconds too")
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        folder = options.keep or folder
        with network.Network(folder, ["a", "b"]) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()), options.times)
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begin = time.monotonic()
                try:
                    said = case(scene)
                except (AssertionError, OSError, subprocess.SubprocessError) as error:
                    said, failed = f"FAILED: {error}", failed + 1
                    scene.end_run()
                print(f"{case.__name__:16} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
