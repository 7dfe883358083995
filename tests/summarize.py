"""Ends a test run: prints the last lines of each test that failed, the seconds of the build and of the tests, and the slowest tests.

    summarize.py RESULTS --build-seconds S --test-seconds S [--slowest 10] [--lines 40]

RESULTS is the file that `ctest --output-junit` writes. The time of a test runs from its start to its end; several tests run at once.
"""
import argparse
import xml.etree.ElementTree


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("--build-seconds", type=float, required=True)
    parser.add_argument("--test-seconds", type=float, required=True)
    parser.add_argument("--slowest", type=int, default=10)
    parser.add_argument("--lines", type=int, default=40, help="lines of output per failed test")
    options = parser.parse_args()
    cases = xml.etree.ElementTree.parse(options.results).getroot().findall("testcase")
    for case in cases:
        if case.get("status") != "fail":
            continue
        print(f"\nFAILED: {case.get('name')}")
        for line in (case.findtext("system-out") or "").rstrip().splitlines()[-options.lines:]:
            print(f"    {line}")
    slowest = sorted(cases, key=lambda case: -float(case.get("time")))[:options.slowest]
    print(f"\nbuild {options.build_seconds:.0f} s, tests {options.test_seconds:.0f} s; the {len(slowest)} slowest of {len(cases)} tests:")
    for case in slowest:
        # CTest states how the test ended; a test that passed needs no remark.
        ended = "" if case.get("status") == "run" else f"  ({case.get('status')})"
        print(f"{float(case.get('time')):8.1f} s  {case.get('name')}{ended}")


main()
