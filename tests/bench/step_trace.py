"""A predicted step compared with a measured one, op by op.

  step_trace.py PREDICTED.json MEASURED.json [--by op|call] [--most N]

PREDICTED was written by `trainctl plan JOB --timeline`, MEASURED by `trainctl run JOB --profile`, for the same job: both list the same
instructions. Prints for each op (or each distinct call: op, operands and attributes) how often a step runs it, the
predicted and measured time, the error and its share of the whole error; then the time in which the compute stream is
busy, the gaps between its kernels, and what lies between two steps. Measured times are medians over the steps.
"""
import argparse, collections, json, statistics, sys


def steps_of(path):
    """Returns two dicts by step: the instructions of rank 0 as (stream, event), in order of time, and the (start, end) of the whole step."""
    events = json.load(open(path))["traceEvents"]
    streams = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    first = min(e["pid"] for e in events)
    steps, lengths = collections.defaultdict(list), {}
    for e in events:
        if e["ph"] != "X" or e["pid"] != first:
            continue
        if streams[e["pid"], e["tid"]] == "steps":
            lengths[e["args"]["step"]] = (e["ts"], e["ts"] + e["dur"])
        elif "instruction" in e["args"]:
            steps[e["args"]["step"]].append((streams[e["pid"], e["tid"]], e))
    for step in steps.values():
        step.sort(key=lambda item: (item[1]["ts"], item[1]["args"]["instruction"]))
    return steps, lengths


def busy_and_gaps(step):
    """Returns the time in which instructions of the compute stream run, the time between them, and their number; times in microseconds."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for stream, e in step if stream == "compute")
    busy = gaps = 0.0
    end = spans[0][0]
    for begin, until in spans:
        gaps += max(0.0, begin - end)
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    return busy, gaps, len(spans)


def call_of(event, by):
    a = event["args"]
    if by == "op":
        return a.get("op", event["name"])
    shapes = [x.split(" ", 1)[1] for x in a.get("in", []) + a.get("out", [])]
    return f"{a.get('op', event['name'])} {' '.join(shapes)} {a.get('attrs', '')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predicted")
    parser.add_argument("measured")
    parser.add_argument("--by", choices=("op", "call"), default="op")
    parser.add_argument("--most", type=int, default=40)
    a = parser.parse_args()
    (predicted, _), (measured, lengths) = steps_of(a.predicted), steps_of(a.measured)
    predicted = next(iter(predicted.values()))
    numbers = {e["args"]["instruction"] for _, e in predicted}
    for step, events in measured.items():
        if {e["args"]["instruction"] for _, e in events} != numbers:
            sys.exit(f"{a.measured}: step {step} has other instructions than {a.predicted}; is it the same job?")
    times = collections.defaultdict(list)
    for events in measured.values():
        for _, e in events:
            times[e["args"]["instruction"]].append(e["dur"])

    rows = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for _, e in predicted:
        row = rows[call_of(e, a.by)]
        row[0] += 1
        row[1] += e["dur"]
        row[2] += statistics.median(times[e["args"]["instruction"]])
    sums = [sum(row[i] for row in rows.values()) for i in range(3)]
    print(f"{'calls':>6s} {'predicted':>11s} {'measured':>11s} {'error':>8s} {'of sum':>7s}")
    line = lambda row, name: print(
        f"{row[0]:6d} {row[1]:8.1f} us {row[2]:8.1f} us {100 * (row[1] / row[2] - 1) if row[2] else 0:+7.1f}% {100 * (row[1] - row[2]) / sums[2]:+6.2f}%  {name}")
    for name, row in sorted(rows.items(), key=lambda item: -abs(item[1][1] - item[1][2]))[:a.most]:
        line(row, name)
    line(sums, "all instructions")

    ones = [busy_and_gaps(events) for events in measured.values()]
    busy, gaps = (statistics.median(one[i] for one in ones) for i in (0, 1))
    p_busy, p_gaps, count = busy_and_gaps(predicted)
    between = [lengths[step][0] - lengths[step - 1][1] for step in sorted(lengths) if step - 1 in lengths]
    print(f"\ncompute stream: {count} instructions; busy {p_busy:.1f} us predicted, {busy:.1f} us measured; "
          f"gaps {p_gaps:.1f} us and {gaps:.1f} us ({gaps / max(count - 1, 1):.2f} us each)")
    if between:
        print(f"between two steps: {statistics.median(between):.1f} us measured")


if __name__ == "__main__":
    main()
