"""Runs the plans of tests/equivalence on 2 to 4 test hosts (network.py). The losses must equal those of one rank, and the bytes within and
between hosts that `trainctl plan` states must equal those that the ranks count and agree with those that the hosts' interfaces count.

    python3 tests/hosts/equivalence.py TRAINCTL TEST_EQUIVALENCE [--every 8] [--only WORDS] [--seed 1]

Runs every `--every`th plan that has at least two ranks, each on hosts drawn at random from its seed. The interfaces also see the preambles of messages,
ssh's stream of logs and statuses, and the handshakes of connections: without packet headers they must count at least the planned bytes, and at most 1.1
times the planned bytes plus one preamble per packet and 256 KB per host. Needs root, as hosts_test.py; exits with 77 and the reason where it cannot.
"""
import argparse
import json
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
import time

import network
from scene import require

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMON_FIELDS = "train.checkpoint=null"  # neither the plan's run nor its reference writes checkpoints
HEADER_BYTES = 66  # per packet: Ethernet, IPv4, and TCP with its time stamps
PREAMBLE_BYTES = 48  # Gloo writes this many bytes before each message and to announce it
NOISE_BYTES = 256_000  # per host, for all traffic that is not training


def table(program):
    listed = subprocess.run([program, "--no-skip", "-tc=the table of plans*"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in listed.stdout.splitlines() if line.startswith("{")]


def ranks_of(plan):
    numbers = [int(field.split("=")[1]) for field in plan["plan"] if field.startswith("launch.ranks=")]
    return numbers[-1] if numbers else 1


def drawn_hosts(ranks, rng):
    """Draws 2 to 4 hosts with at least one rank each."""
    count = min(ranks, rng.randint(2, 4))
    cuts = sorted(rng.sample(range(1, ranks), count - 1))
    return [f"{host}:{end - begin}" for host, begin, end in zip("abcd", [0, *cuts], [*cuts, ranks])]


def sent_between_hosts(hosts):
    """Bytes that the interfaces of all hosts have sent to other hosts, without the headers of packets, and packets."""
    total = all_packets = 0
    for host in hosts.values():
        counted = network.quiet("ip", "netns", "exec", host.namespace, "sh", "-c", "cd /sys/class/net/eth0/statistics && cat tx_bytes tx_packets", check=False)
        sent, packets = map(int, counted.stdout.split() or (0, 0))
        total, all_packets = total + sent - HEADER_BYTES * packets, all_packets + packets
    return total, all_packets


def hosts_of(plan, rng):
    """Returns the hosts and the plan's other fields. If the plan sets launch.slurm.nodes, that many hosts share the ranks evenly."""
    nodes = [int(field.split("=")[1]) for field in plan["plan"] if field.startswith("launch.slurm.nodes=")]
    fields = [field for field in plan["plan"] if not field.startswith(("launch.target=", "launch.slurm."))]
    if not nodes:
        return drawn_hosts(ranks_of(plan), rng), fields
    return [f"{host}:{ranks_of(plan) // nodes[0]}" for host in "abcd"[:nodes[0]]], fields


class Runs:
    def __init__(self, hosts, trainctl):
        self.hosts, self.trainctl, self.number, self.references = hosts, trainctl, 0, {}

    def run(self, job, fields):
        self.number += 1
        logs = self.hosts.own / f"logs.{self.number}"
        words = [self.trainctl, "run", str(ROOT / f"tests/jobs/{job}.yaml"), COMMON_FIELDS, f"launch.log_dir={logs}", *fields]
        result = self.hosts.run(shlex.join(words), timeout=300)
        require(result.returncode == 0, f"{shlex.join(words)}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        lines = [json.loads(line) for line in (logs / "1/metrics.jsonl").read_text().splitlines()]
        losses = {line["run_step"]: line["loss"] for line in lines if "loss" in line and "run_step" in line}
        return losses, json.loads((logs / "1/outcome.json").read_text()), json.loads((logs / "1/plan.json").read_text())

    def reference(self, plan):
        key = plan["reference"] + str(plan["same"])
        if key not in self.references:
            self.references[key] = self.run(plan["reference"], plan["same"])[0]
        return self.references[key]


def check_plan(runs, plan, rng):
    expected = runs.reference(plan)
    hosts, fields = hosts_of(plan, rng)
    before = sent_between_hosts(runs.hosts.hosts)
    losses, outcome, planned = runs.run(plan["job"], [*plan["same"], *fields, f"launch.hosts=[{', '.join(hosts)}]"])
    seen, packets = (after - was for after, was in zip(sent_between_hosts(runs.hosts.hosts), before))
    require(len(expected) == 100 and losses.keys() == expected.keys(), f"steps {sorted(losses)}")
    worst = max(abs(losses[step] - expected[step]) / abs(expected[step]) for step in expected)
    require(worst < plan["tolerance"], f"losses differ by {worst:.2g}, more than {plan['tolerance']:g}")
    traffic, step = outcome["traffic"], planned["launch"]["traffic"]
    require(traffic["steps"] == 100, f"{traffic}")
    counts_rows = "token_exchange" in outcome  # the plan states the expected number, which the router decides
    for where in ("within", "between"):
        planned_bytes = traffic[f"planned_{where}"]
        is_as_planned = 0.7 * planned_bytes <= traffic[where] <= 1.3 * planned_bytes if counts_rows else traffic[where] == planned_bytes
        require(is_as_planned and planned_bytes == 100 * step[where], f"{where} hosts: {traffic}, planned {step[where]} per step")
    most = 1.1 * traffic["between"] + PREAMBLE_BYTES * packets + NOISE_BYTES * len(hosts)
    require(traffic["between"] <= seen <= most, f"the interfaces have sent {seen}, planned are {traffic['between']}")
    return (f"on {' '.join(hosts)}: losses within {worst:.1e}; a step moves {step['within']:,} bytes within and {step['between']:,} between "
            f"hosts, as planned; the interfaces sent {seen / max(1, traffic['between']):.2f} times that")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("test_equivalence")
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--only", help="plans whose name has these words")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    plans = [plan for plan in table(options.test_equivalence) if ranks_of(plan) > 1]
    plans = [plan for plan in plans if options.only in plan["name"]] if options.only else plans[::options.every]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, list("abcd")) as hosts:
            runs = Runs(hosts, str(pathlib.Path(options.trainctl).resolve()))
            for number, plan in enumerate(plans):
                begin = time.monotonic()
                try:
                    result = check_plan(runs, plan, random.Random(options.seed * 1000 + number))
                except (AssertionError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
                    result, wrong = f"WRONG: {type(error).__name__} {error}", wrong + 1
                print(f"{plan['name']:60} {time.monotonic() - begin:5.1f} s  {result}", flush=True)
    print(f"{len(plans)} plans, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
