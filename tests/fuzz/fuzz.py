#!/usr/bin/env python3
"""Builds the fuzzers with clang and runs each for a while, two at a time.

    fuzz.py --trainctl build/release/bin/trainctl [--sanitizer address|thread] [--seconds 60] [--only NAME ...]

fuzz_tables runs once per format; --only fuzz_tables/t.h5 runs one of them. A file NAME.dict beside a fuzzer has words to insert.
address is preset fuzz (with undefined behaviour); thread is preset fuzz-tsan, for the fuzzers that start threads. A fuzzer starts from
seeds.py and from what its earlier runs have found (build/PRESET/corpus). Prints a row per fuzzer. Exits with 1 if one has found
something: the input and the report are in build/PRESET/found. Without clang exits with 77, which is Skipped.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PRESETS = {"address": "fuzz", "thread": "fuzz-tsan"}
THREADED = ["fuzz_agent_orders", "fuzz_rank_links", "fuzz_report_server", "fuzz_store_sessions"]
SKIPPED = 77
MOST_SECONDS = 120  # of one input, on a busy machine
# The agent forks while it has threads; libFuzzer prints in signal handlers.
ENVIRONMENT = {**os.environ, "TSAN_OPTIONS": f"die_after_fork=0:halt_on_error=1:report_signal_unsafe=0:suppressions={HERE}/thread_sanitizer.txt",
               "UBSAN_OPTIONS": "print_stacktrace=1"}


def build(preset, names):
    """Returns the folder of the programs."""
    subprocess.run(["cmake", "--preset", preset], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", f"build/{preset}", "--target", *names, "image_seeds"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / preset / "bin"


def fuzz(name, folder, seconds):
    """(name, wall seconds, CPU seconds, executions, edges, what it has found)"""
    program, form = folder / "bin" / name.partition("/")[0], name.partition("/")[2]
    seeds, name = folder / "seeds" / program.name, name.replace("/", ".")
    corpus, found = folder / "corpus" / name, folder / "found"
    environment = dict(ENVIRONMENT, **({"TRAINCTL_FUZZ_FORMAT": form} if form else {}))
    for each in [corpus, seeds, found]:
        each.mkdir(parents=True, exist_ok=True)
    output = found / f"{name}.txt"
    before = set(found.glob(f"{name}-*"))
    # Without randomised addresses, which some kernels place where ThreadSanitizer keeps its own memory.
    words = ["setarch", "-R", program, *(f"-dict={dictionary}" for dictionary in HERE.glob(f"{program.name}.dict")), corpus, seeds, f"-max_total_time={seconds}", "-rss_limit_mb=2048", f"-timeout={MOST_SECONDS}",
             "-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={found}/{name}-"]
    begin = time.monotonic()
    with open(output, "w") as file:
        child = subprocess.Popen([str(word) for word in words], cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text(errors="replace")
    last = lambda pattern: int((re.findall(pattern, text) or ["0"])[-1])
    executions = last(r"stat::number_of_executed_units: (\d+)") or last(r"(?m)^#(\d+)")
    inputs = sorted(path.name for path in set(found.glob(f"{name}-*")) - before)
    is_found = child.returncode != 0 or inputs
    said = f"FOUND {', '.join(inputs) or f'exit code {child.returncode}'}, see {output}" if is_found else "nothing"
    return name, time.monotonic() - begin, usage.ru_utime + usage.ru_stime, executions, last(r"cov: (\d+)"), said


def table_formats():
    """The formats of fuzz_tables.cpp: "t.h5", "index.json+shard.00000.mds"."""
    listed = re.search(r"kFormats\[\] = \{(.*?)\};", (HERE / "fuzz_tables.cpp").read_text(), re.S)[1]
    return ["+".join(re.findall(r'"([^"]+)"', entry)) for entry in re.findall(r"\{(.*?)\}", listed)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainctl", type=pathlib.Path, required=True)
    parser.add_argument("--sanitizer", choices=PRESETS, default="address")
    parser.add_argument("--seconds", type=int, default=60, help="of each fuzzer")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    known = sorted(path.stem for path in HERE.glob("fuzz_*.cpp")) if options.sanitizer == "address" else THREADED
    by_format = [f"fuzz_tables/{name}" for name in table_formats()]
    known = [*known, *by_format] if options.sanitizer == "address" else known
    names = options.only or [name for name in known if name != "fuzz_tables"]
    names = [each for name in names for each in (by_format if name == "fuzz_tables" else [name])]
    if unknown := set(names) - set(known):
        parser.error(f"no fuzzer {', '.join(unknown)}; there are {', '.join(known)}")
    for program in ["clang++", "cmake", "ninja"]:
        if not shutil.which(program):
            print(f"Skipped: {program} is not installed")
            return SKIPPED
    trainctl = options.trainctl.resolve()
    bin_folder = build(PRESETS[options.sanitizer], sorted({name.partition("/")[0] for name in names}))
    folder = bin_folder.parent
    subprocess.run([sys.executable, HERE / "seeds.py", folder / "seeds", "--build", bin_folder, "--trainctl", trainctl], check=True,
                   stdout=subprocess.DEVNULL)
    failed = total = 0
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for name, wall, cpu, executions, edges, said in pool.map(lambda name: fuzz(name, folder, options.seconds), names):
            failed += said != "nothing"
            total += wall
            print(f"{name:42} {options.sanitizer:7} {wall:7.0f} s  {cpu:7.0f} s of CPU  {executions:10,} runs  {edges:6,} edges  {said}", flush=True)
    print(f"{len(names)} fuzzers, {total / 60:.0f} minutes in total, {failed} found something")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
