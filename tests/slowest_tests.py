"""Prints where the time of a build and of its tests went: the seconds of both, and the slowest tests.

    slowest_tests.py RESULTS --build-seconds S --test-seconds S [--count 10]

RESULTS is the file of `ctest --output-junit`. The seconds of a test are those from its start to its end; several tests run at once.
"""
import argparse
import xml.etree.ElementTree


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    parser.add_argument("--build-seconds", type=float, required=True)
    parser.add_argument("--test-seconds", type=float, required=True)
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    cases = xml.etree.ElementTree.parse(options.results).getroot().findall("testcase")
    slowest = sorted(cases, key=lambda case: -float(case.get("time")))[:options.count]
    print(f"\nbuild {options.build_seconds:.0f} s, tests {options.test_seconds:.0f} s; the {len(slowest)} slowest of {len(cases)} tests:")
    for case in slowest:
        # CTest's own words for how the test ended; a test that passed needs none.
        ended = "" if case.get("status") == "run" else f"  ({case.get('status')})"
        print(f"{float(case.get('time')):8.1f} s  {case.get('name')}{ended}")


main()
