"""Long forms of the tests, one after another (./bootstrap soak).

    soak.py --build build/release [MINUTES] [--only WORDS]        every campaign in its long form; with MINUTES in rounds of other seeds
    soak.py --build build/release --busy N [--loops 4] [SUITE...]  the suites N times each beside busy loops: no test depends on speed

A campaign draws jobs or faults from a seed; CTest runs its short form. No campaign starts after MINUTES; without MINUTES there is one
round. Prints a row per campaign or suite, keeps the output of those that failed in BUILD/soak, and exits with 1 if one did.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITES = ["cli", "launcher", "campaign", "hosts", "clusters", "servers", "resumes", "report"]  # of --busy: how names of tests begin
SKIPPED = 77
LONG_EMULATED = ("cuda: large weight gradients in tiles*,cuda: products by tiles*,a CUDA kernel takes operands*,"
                 "large and odd sizes*,train.sink_steps*,a captured step*")


def campaigns(build, seed):
    """(name, words) of each; the words of one round."""
    binaries = build / "bin"
    trainctl = ["--trainctl", binaries / "trainctl"]
    python = lambda script, *words: [sys.executable, ROOT / "tests" / script, *words]
    yield "files alone", python("build/compile_alone.py", ROOT, build / "alone")
    yield "faults in runs", python("campaign/campaign.py", *trainctl, "--faults", 200, "--ranks", "4,8", "--seed", seed)
    yield "faults in servers", python("campaign/servers.py", *trainctl, "--faults", 100, "--seed", seed)
    yield "faults during saves", python("campaign/resumes.py", *trainctl, "--shim", build / "tests/libdisk_faults.so", "--kills", 200, "--power", 200,
                               "--seed", seed)
    yield "every flipped byte of a checkpoint", ["env", "TRAINCTL_TEST_ALL_BYTES=1", binaries / "test_cli",
                                                 "--test-case=a checkpoint with a flipped byte*"]
    yield "slow disks", python("campaign/saves.py", *trainctl, "--shim", build / "tests/libdisk_faults.so")
    yield "faults in files", python("campaign/data_faults.py", *trainctl, "--shim", build / "tests/libread_faults.so")
    yield "failing object stores", python("stores/object_stores_test.py", binaries / "trainctl", "--long")
    yield "verified templates", python("cli/verify_test.py", binaries / "trainctl", "--templates")
    yield "random jobs", python("random_jobs/random_jobs.py", *trainctl, "--jobs", 500, "--seed", 100 + seed)
    yield "random plans of experts", python("random_jobs/expert_plans.py", *trainctl, "--plans", 40, "--seed", 100 + seed)
    yield "a rank at half the speed", python("campaign/unequal_machines.py", *trainctl)
    yield "a rank with half the CPU quota", python("campaign/unequal_machines.py", *trainctl, "--quota", "--times")
    yield "local steps of a language model", python("campaign/local_steps.py", *trainctl, "--steps", 800, "--small", "--within", 0.025)
    yield "random contexts", python("random_jobs/context.py", *trainctl, "--jobs", 40, "--resume", "--seed", 100 + seed)
    yield "packed contexts", python("random_jobs/packed_context.py", *trainctl, "--jobs", 20, "--seed", 100 + seed)
    yield "every plan with offloaded activations", ["env", "TRAINCTL_TEST_ALL_PLANS=1", binaries / "test_equivalence",
                                                    "--test-case=activations in the memory of the host*"]
    yield "random jobs beside JAX", python("random_jobs/random_jobs.py", *trainctl, "--jax", binaries / "dump_job", "--jobs", 200,
                                           "--seed", 100 + seed)
    yield "random attention beside PyTorch", python("equivalence/torch/attention.py", binaries / "trainctl", "--jobs", 40, "--seed", 100 + seed)
    yield "random networks beside PyTorch", python("random_jobs/torch_networks.py", *trainctl, "--jobs", 200, "--seed", 100 + seed)
    yield "cookbook jobs that learn", python("equivalence/torch/cookbook.py", binaries / "trainctl", "learns")
    yield "mutated jobs", python("mutated_jobs/mutated_jobs.py", *trainctl, "--jobs", 2000, "--seed", 100 + seed)
    yield "damaged runs", python("fuzz/damaged_runs.py", *trainctl, "--folders", 1000, "--seed", seed)
    yield "unauthenticated peers", python("fuzz/unauthenticated_peers.py", binaries / "trainctl", "--attacks", 200, "--seed", seed)
    for sanitizer in ["address", "thread"]:
        yield f"fuzzers {sanitizer}", python("fuzz/fuzz.py", *trainctl, "--sanitizer", sanitizer, "--seconds", 240)
    yield "faults on hosts", python("hosts/faults.py", binaries / "trainctl", "--runs", 50, "--seed", seed)
    yield "plans on hosts", python("hosts/equivalence.py", binaries / "trainctl", binaries / "test_equivalence", "--every", 8, "--seed", seed)
    yield "plans short of memory", ["env", "TRAINCTL_LLAMA_JOBS=40", binaries / "test_search", "--test-case=llama: under a memory limit*"]
    yield "plans beside those of users", ["env", "TRAINCTL_KNOWN_JOBS=40", f"TRAINCTL_KNOWN_FIRST={40 * seed}", binaries / "test_search",
                                          "--test-case=llama: on any number of ranks*"]
    yield "laws of the search", ["env", "TRAINCTL_LAW_JOBS=30", f"TRAINCTL_LAW_FIRST={30 * seed}", binaries / "test_search",
                                 "--test-case=llama: on drawn jobs*"]
    yield "calibration", [binaries / "trainctl", "calibrate", "--fresh", "--name", "soak"]
    if (binaries / "test_cuda_emulated").exists():
        yield "emulated random jobs", python("random_jobs/random_jobs.py", *trainctl, "--emulated", binaries / "test_cuda_emulated",
                                             "--ranks", "1,2,3,4", "--jobs", 100, "--seed", 100 + seed)
        yield "emulated random networks", python("random_jobs/torch_networks.py", *trainctl, "--emulated", binaries / "test_cuda_emulated",
                                                 "--jobs", 40, "--seed", 100 + seed)
        yield "emulated plans of experts", python("random_jobs/expert_plans.py", *trainctl, "--emulated", binaries / "test_cuda_emulated", "--plans", 4,
                                                  "--seed", 100 + seed)
        yield "every emulated cut", [binaries / "test_cuda_emulated", "--test-case=every cut*GPU too,a CUDA kernel run twice*,kernels that only compiled programs*"]
        yield "large emulated kernels", [binaries / "test_cuda_emulated", f"--test-case={LONG_EMULATED}"]


def run(name, words, folder):
    """(exit code, seconds, file with the output)"""
    output = folder / (name.replace(" ", "_") + ".txt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder)}
    begin = time.monotonic()
    with open(output, "w") as file:
        code = subprocess.run([str(word) for word in words], cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                              env=environment, check=False).returncode
    return code, time.monotonic() - begin, output


def soak(options, folder):
    end = time.monotonic() + 60 * options.minutes if options.minutes is not None else None
    failed = rounds = 0
    while rounds == 0 or (end is not None and time.monotonic() < end):
        rounds += 1
        for name, words in campaigns(options.build, options.seed + rounds - 1):
            if options.only and options.only not in name:
                continue
            if end is not None and time.monotonic() > end:
                break
            code, seconds, output = run(f"{name} {rounds}", words, folder)
            last = (output.read_text(errors="replace").strip().splitlines() or [""])[-1]
            said = "ok" if code == 0 else "skipped" if code == SKIPPED else f"FAILED ({code}), see {output}"
            failed += code not in (0, SKIPPED)
            print(f"{name:24} round {rounds}  {seconds:8.1f} s  {said}  {last[:100]}", flush=True)
    print(f"{rounds} rounds, {failed} campaigns failed")
    return failed


def busy(options, folder):
    """CTest runs the suites; a busy loop is a process that computes without end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.loops)]
    failed = 0
    try:
        for suite in options.suites or SUITES:
            for number in range(1, options.busy + 1):
                results = folder / f"{suite}.{number}.xml"
                results.unlink(missing_ok=True)
                words = ["ctest", "--test-dir", options.build, "-R", f"^{suite}:", "-j", options.at_once, "--output-on-failure",
                         "--output-junit", results]
                code, seconds, output = run(f"{suite} {number}", words, folder)
                cases = xml.etree.ElementTree.parse(results).getroot().findall("testcase") if results.exists() else []
                wrong = [case.get("name") for case in cases if case.get("status") == "fail"]
                skipped = sum(case.find("skipped") is not None for case in cases)
                is_wrong = code != 0 or not cases
                failed += is_wrong
                said = f"FAILED, see {output}: {'; '.join(wrong) or 'no test was run'}" if is_wrong else "ok"
                print(f"{suite:10} {number:3} of {options.busy}  {len(cases):4} tests, {skipped} skipped  {seconds:8.1f} s  {said}", flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    print(f"beside {options.loops} busy loops: {failed} runs failed")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="MINUTES | SUITE")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--only", help="campaigns whose name has these words")
    parser.add_argument("--busy", type=int, metavar="N", help="run each suite N times beside busy loops, in place of the campaigns")
    parser.add_argument("--loops", type=int, default=4, help="of --busy")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="tests at a time, of --busy")
    options = parser.parse_args()
    options.build = options.build.resolve()
    folder = options.build / "soak"
    folder.mkdir(exist_ok=True)
    if options.busy is not None:
        options.suites = options.words
        unknown = [suite for suite in options.suites if suite not in SUITES]
        if unknown or options.busy < 1:
            parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}" if unknown else "--busy: at least 1")
        return 1 if busy(options, folder) else 0
    names = [name for name, _ in campaigns(options.build, options.seed)]
    if options.only and not any(options.only in name for name in names):
        parser.error(f"no campaign has '{options.only}' in its name; there are {', '.join(names)}")
    if len(options.words) > 1 or not all(word.replace(".", "", 1).isdigit() for word in options.words):
        parser.error(f"expected MINUTES, got {' '.join(options.words)}")
    options.minutes = float(options.words[0]) if options.words else None
    return 1 if soak(options, folder) else 0


if __name__ == "__main__":
    sys.exit(main())
