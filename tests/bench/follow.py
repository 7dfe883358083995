"""Does `trainctl logs --follow` keep up with ranks that write as fast as they can?

  follow.py TRAINCTL [--ranks 8] [--mb 100] [--no-times]

Starts a run whose ranks write numbered lines, follows it from its first moment, and checks that what the follower
printed is every line of every rank, whole and in order. Prints MB/s of the writing and of the following, and how
long after the run's end the follower had printed the last line. Exits with 1 where a line is wrong.
"""
import argparse, pathlib, subprocess, sys, tempfile, time

LINE_BYTES = 100


def job(ranks, lines):
    body = "x" * (LINE_BYTES - len("rank 0 line 1000000 \n"))
    return f"""name: flood
command: [sh, -c, 'seq -f "rank $RANK line %07.0f {body}" 1 {lines}']
launch: {{ranks: {ranks}}}
"""


def wait_for(path):
    deadline = time.monotonic() + 600
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within 600 s")
        time.sleep(0.002)


def check(printed, ranks, lines):
    """Exits unless `printed` has every line of every rank, complete and in order. Returns the number of bytes."""
    body = b"x" * (LINE_BYTES - len("rank 0 line 1000000 \n"))
    upcoming, total = [1] * ranks, 0
    with open(printed, "rb") as file:
        for number, line in enumerate(file, 1):
            total += len(line)
            rank = int(line[5:line.index(b" |")])
            if line != b"rank %d | rank %d line %07d %b\n" % (rank, rank, upcoming[rank], body):
                sys.exit(f"line {number} is not line {upcoming[rank]} of rank {rank}: {line[:200]!r}")
            upcoming[rank] += 1
    if upcoming != [lines + 1] * ranks:
        sys.exit(f"lines are missing: {[count - 1 for count in upcoming]} of {lines} were printed")
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mb", type=float, default=100, help="MB written per rank")
    parser.add_argument("--no-times", action="store_true", help="print no figures: a test on a busy machine")
    a = parser.parse_args()
    binary, lines = str(pathlib.Path(a.binary).resolve()), int(a.mb * 1e6 / LINE_BYTES)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "job.yaml").write_text(job(a.ranks, lines))
        start = time.perf_counter()
        run = subprocess.Popen([binary, "run", "job.yaml"], cwd=scratch, stdout=subprocess.DEVNULL)
        wait_for(scratch / "log_output/1/rank.0/stdout")
        with open(scratch / "printed", "wb") as printed:
            follower = subprocess.Popen([binary, "logs", "--follow"], cwd=scratch, stdout=printed)
            if run.wait() != 0:
                sys.exit(f"trainctl run exited with {run.returncode}")
            run_s = time.perf_counter() - start
            if follower.wait() != 0:
                sys.exit(f"trainctl logs exited with {follower.returncode}")
        follow_s = time.perf_counter() - start
        total = check(scratch / "printed", a.ranks, lines)
    megabytes = a.ranks * lines * LINE_BYTES / 1e6
    print(f"{a.ranks} ranks x {a.mb:g} MB: all {a.ranks * lines} lines whole and in order, {total / 1e6:.0f} MB printed")
    if not a.no_times:
        print(f"run {run_s:.2f} s ({megabytes / run_s:.0f} MB/s), followed in {follow_s:.2f} s "
              f"({megabytes / follow_s:.0f} MB/s), {1e3 * (follow_s - run_s):.0f} ms after the run's end")


main()
