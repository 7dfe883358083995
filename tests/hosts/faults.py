"""Injects faults into runs on test hosts (network.py), each run once and in an order that depends on the seed, and judges the outcomes.

    python3 tests/hosts/faults.py TRAINCTL [--seed 1] [--runs 40] [--only NAME]

A run fails if its end differs from the rule of the fault, if it names a wrong host or rank, repeats or skips a step, has losses that
differ from those of one rank, or leaves anything on a host. Needs root, like hosts_test.py; exits with 77 and the reason without it.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import network
from scene import ONE_RANK, Scene, checkpoints, end_of, require, stop
from network import eventually

# Not the job's mae: its gradient jumps where a prediction meets its label. At this rate the losses of 4 ranks are those of one within 3e-7 over 1,900 steps.
LOSS = "loss=mse optimizer.learning_rate=0.0001"
SAVES = f"{LOSS} train.checkpoint.every_steps=15 launch.reconnect=5s"


def goes_on(scene, process):
    before = scene.step()
    require(eventually(lambda: scene.step() > before + 15 or process.poll() is not None) and process.poll() is None,
            "it continues: " + scene.output.read_text()[-1500:])
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])


def fails_at(scene, process, host, rank=None):
    code = end_of(process)
    cause = scene.cause()
    require(code == 5 and cause["host"] == host and rank in (None, cause["rank"]), f"{code} {cause}")


def processes_of(host, what):
    found = []
    for pid in host.processes():
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == what:
                found.append(pid)
    return found


def kill_rank(scene, process, random):
    rank = random.randrange(4)
    host, pid = scene.rank(rank)
    os.kill(pid, signal.SIGKILL)
    fails_at(scene, process, host.name, rank)


def kill_agent(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    for pid in processes_of(host, "trainctl-agent"):
        os.kill(pid, signal.SIGKILL)
    fails_at(scene, process, host.name)


def kill_launcher(scene, process, random):
    pids = subprocess.run(["pgrep", "-f", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True)
    for pid in pids.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    end_of(process)


def kill_connections(scene, process, random):
    """Kills the connections of ssh on the launcher's host: they are opened again."""
    pids = subprocess.run(["pgrep", "-f", "ssh -T -oBatchMode=yes"], capture_output=True, text=True, check=False).stdout.split()
    for pid in pids:
        with contextlib.suppress(OSError):  # only those in the launcher's network
            if os.readlink(f"/proc/{pid}/cwd") and f"{scene.network.folder}" in pathlib.Path(f"/proc/{pid}/mountinfo").read_text():
                os.kill(int(pid), signal.SIGKILL)
    goes_on(scene, process)


def cut(seconds):
    def inject(scene, process, random):
        host = random.choice(list(scene.network.hosts.values()))
        host.cut()
        try:
            time.sleep(seconds)
        finally:
            host.mend()
        goes_on(scene, process)
    inject.__name__ = f"cut_{seconds}_s"
    return inject


def cut_for_good(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    host.cut()
    try:
        fails_at(scene, process, host.name)
        scene.require_nothing_left()
    finally:
        host.mend()


def freeze(scene, process, random):
    """Stops all processes of a host except sshd for 2 s."""
    host = random.choice(list(scene.network.hosts.values()))
    pids = list(host.processes())
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    goes_on(scene, process)


def freeze_for_good(scene, process, random):
    host = random.choice(list(scene.network.hosts.values()))
    frozen = list(host.processes())
    for pid in frozen:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
    try:
        fails_at(scene, process, host.name)
    finally:
        for pid in frozen:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def interrupt(scene, process, random):
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])


def save_and_interrupt(scene, process, random):
    """Requests a save just before the end."""
    pid = subprocess.run(["pgrep", "-of", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=True).stdout.split()[0]
    os.kill(int(pid), signal.SIGUSR1)
    time.sleep(random.uniform(0, 0.05))
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
    require(checkpoints(scene)[-1] == scene.step(), f"the last state is saved: {checkpoints(scene)}, step {scene.step()}")


def lose_host(scene, process, random):
    """launch.elastic: the other host continues, and the lost host rejoins."""
    host = scene.network.hosts["b"]
    host.cut()
    try:
        require(eventually(lambda: "2 ranks instead of 4" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
                "it continues: " + scene.output.read_text()[-1500:])
    finally:
        host.mend()
    require(eventually(lambda: "4 ranks instead of 2" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
            "it takes b back: " + scene.output.read_text()[-1500:])
    goes_on(scene, process)


def lose_agent(scene, process, random):
    """The same after an agent was killed."""
    host = random.choice(list(scene.network.hosts.values()))
    for pid in processes_of(host, "trainctl-agent"):
        os.kill(pid, signal.SIGKILL)
    require(eventually(lambda: "2 ranks instead of 4" in scene.output.read_text() or process.poll() is not None) and process.poll() is None,
            "it continues: " + scene.output.read_text()[-1500:])
    goes_on(scene, process)


def restart_rank(scene, process, random):
    """launch.max_restarts: a killed rank costs the steps since the last checkpoint."""
    require(eventually(lambda: checkpoints(scene)), "it saves")
    os.kill(scene.rank(random.randrange(4))[1], signal.SIGKILL)
    require(eventually(lambda: "resuming after step" in scene.output.read_text()), scene.output.read_text()[-1500:])
    time.sleep(1)
    goes_on(scene, process)


def two_jobs(scene, process, random):
    """Another job on the same hosts is interrupted; this one continues."""
    other = Scene(scene.network, scene.trainctl)
    other.runs = scene.runs + 1000
    second = other.start("train.checkpoint=null")
    require(stop(other, second) == 130, other.output.read_text()[-1500:])
    goes_on(scene, process)


def freezer(seconds):
    """Freezes all processes of a host, including the agent, which then neither receives nor replies nor can be killed."""
    def inject(scene, process, random):
        host = random.choice(list(scene.network.hosts.values()))
        thaw = host.freeze()
        try:
            if seconds:
                time.sleep(seconds)
            else:
                fails_at(scene, process, host.name)
        finally:
            require(thaw(), "the freezer lets it go")
        if seconds:
            goes_on(scene, process)
    inject.__name__ = f"freezer_{seconds}_s" if seconds else "freezer_for_good"
    return inject


def starved_agent(scene, process, random):
    """An agent that runs only a twentieth of the time."""
    host = random.choice(list(scene.network.hosts.values()))
    pids = processes_of(host, "trainctl-agent")
    end = time.monotonic() + 6
    try:
        while time.monotonic() < end:
            for number, pause in ((signal.SIGSTOP, 0.38), (signal.SIGCONT, 0.02)):
                for pid in pids:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                time.sleep(pause)
    finally:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
    goes_on(scene, process)


def preload(scene):
    """Builds a library that sets back the wall clock of the program that loads it by an hour."""
    library = pathlib.Path(scene.network.folder) / "clock.so"
    if not library.exists():
        source = library.with_suffix(".c")
        source.write_text("""#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *to) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, to);
  if (clock == CLOCK_REALTIME) to->tv_sec -= 3600;
  return result;
}
time_t time(time_t *to) { struct timespec now; clock_gettime(CLOCK_REALTIME, &now); if (to) *to = now.tv_sec; return now.tv_sec; }
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now); to->tv_sec = now.tv_sec; to->tv_usec = now.tv_nsec / 1000; (void)zone; return 0;
}
""")
        network.quiet("cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl")
    return library


def begin(scene, fields=""):
    return scene.start(f"{SAVES} {fields}")


def wrong_clock(scene, process, random):
    """A host whose clock is an hour slow takes part like any other, even in saves and in the order of causes."""
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
    host = random.choice(list(scene.network.hosts.values()))
    host.set_environment([f"LD_PRELOAD={preload(scene)}"])
    try:
        process = begin(scene)
        worker = scene.rank(0 if host.name == "a" else 2)[1]
        require("clock.so" in pathlib.Path(f"/proc/{worker}/maps").read_text(), "the rank has the wrong clock")
        if random.random() < 0.5:
            goes_on(scene, process)
        else:
            kill_rank(scene, process, random)
    finally:
        host.set_environment()


def without_libraries(scene, process, random):
    """A host without the libraries that this program is linked with uses those of the bundle."""
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
    host = random.choice(list(scene.network.hosts.values()))
    linked = subprocess.run(["ldd", scene.trainctl], capture_output=True, text=True, check=True).stdout
    paths = [line.split()[2] for line in linked.splitlines() if "=> /" in line]
    needed = {"libc.", "libcrypt", "ld-linux", "libselinux", "libpcre", "libz.", "libzstd", "libgcc_s", "libm.", "libresolv", "libdl", "libpthread",
              "libacl", "libaudit", "libcap", "libpam", "libkrb", "libgssapi", "libcom_err", "libkeyutils", "libwrap", "libnsl", "libsystemd", "liblz",
              "libtirpc"}  # by sshd, sh, tar
    hidden = [path for path in paths if not any(pathlib.Path(path).name.startswith(name) for name in needed)]
    require(any("libstdc++" in path for path in hidden), f"{hidden}")
    undo = [host.bind("/dev/null", os.path.realpath(path)) for path in hidden]
    try:
        goes_on(scene, begin(scene))
    finally:
        for each in undo:
            each()


def changed_key(scene, process, random):
    """ssh refuses a host whose key has changed; no rank starts anywhere."""
    require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
    known = scene.network.launcher.tree / "root/.ssh/known_hosts"
    text = known.read_text()
    lines = text.splitlines()
    keys = [line.split(" ", 1)[1] for line in lines]
    known.write_text("".join(f"{line.split(' ')[0]} {key}\n" for line, key in zip(lines, reversed(keys))))
    try:
        result = scene.run("launch.hosts='[a:2, b:2]' launch.ranks=4 train.steps=5")
    finally:
        known.write_text(text)
    require(result.returncode == 5 and "Host key verification failed" in result.stderr, result.stdout + result.stderr)


def full_disk(scene, process, random):
    """The disk of host b fills up. Before the start, the run does not begin and names b; later it continues, or ends and names b."""
    host = scene.network.hosts["b"]
    filler = host.tree / "root/filler"
    if random.random() < 0.5:
        require(stop(scene, process) == 130, scene.output.read_text()[-1500:])
        shutil.rmtree(host.tree / "root/.cache/trainctl/bin", ignore_errors=True)  # the program has to go there once more
        fill(filler)
        try:
            result = scene.run("launch.hosts='[a:2, b:2]' launch.ranks=4 train.steps=5")
        finally:
            filler.unlink()
        require(result.returncode == 5 and "host b" in result.stderr and "No space left" in result.stderr, result.stdout + result.stderr)
        return
    fill(filler)
    try:
        time.sleep(3)
        if process.poll() is None:
            goes_on(scene, process)
        else:
            fails_at(scene, process, "b")
    finally:
        filler.unlink()


def fill(path):
    with open(path, "wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()


def two_jobs_one_hurt(scene, process, random):
    """One of two jobs on the same hosts loses its agent; the other continues, and neither leaves anything."""
    other = Scene(scene.network, scene.trainctl)
    other.runs = scene.runs + 2000
    before = {pid for host in scene.network.hosts.values() for pid in processes_of(host, "trainctl-agent")}
    second = other.start("train.checkpoint=null launch.reconnect=5s")
    host = random.choice(list(scene.network.hosts.values()))
    theirs = [pid for pid in processes_of(host, "trainctl-agent") if pid not in before]
    for pid in theirs:
        os.kill(pid, signal.SIGKILL)
    require(len(theirs) == 1 and end_of(second) == 5, other.output.read_text()[-1500:])
    require(other.cause()["host"] == host.name, f"{other.cause()}")
    goes_on(scene, process)


def kill_sshd(scene, process, random):
    """Kills the sshd of a connection to a host: the connection is opened again."""
    host = random.choice(list(scene.network.hosts.values()))
    mine = network.namespace_of(network.first_of(host.process.pid))
    first = network.first_of(host.process.pid)
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdigit() and network.namespace_of(int(entry.name)) == mine and int(entry.name) != first:
                if "sshd" in (entry / "comm").read_text():
                    os.kill(int(entry.name), signal.SIGKILL)
    goes_on(scene, process)


FAULTS = [kill_rank, kill_agent, kill_launcher, kill_connections, cut(1), cut(3), cut_for_good, freeze, freeze_for_good, interrupt,
            save_and_interrupt, lose_host, lose_agent, restart_rank, two_jobs, cut(10), freezer(2), freezer(0), starved_agent, wrong_clock,
            without_libraries, changed_key, full_disk, two_jobs_one_hurt, kill_sshd]
FIELDS = {"lose_host": "parallel.mode=data_parallel parallel.optimizer_shard.level=0 launch.elastic=2", "lose_agent": "parallel.mode=data_parallel launch.elastic=2",
          "restart_rank": "launch.max_restarts=1", "cut_3_s": "launch.reconnect=15s", "cut_10_s": "launch.reconnect=15s"}


def judge_steps(scene, expected):
    found = scene.losses()
    require(not found or sorted(found) == list(range(1, len(found) + 1)), f"each step once: {sorted(found)}")
    off = {step: (loss, expected[step]) for step, loss in found.items() if step in expected and abs(loss - expected[step]) > 1e-4 * abs(expected[step])}
    require(not off, f"losses differ at {len(off)} of {len(found)} steps: {dict(list(off.items())[:5])}")


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=len(FAULTS))
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    reason = network.missing()
    if reason:
        print("skipped: " + reason)
        return 77
    chosen = [fault for fault in FAULTS if not options.only or fault.__name__ in options.only]
    wrong = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="hosts.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, ["a", "b"], disks={"b": "700M"}) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()))
            one = scene.run(f"{ONE_RANK} {LOSS} train.steps=300")
            require(one.returncode == 0, one.stdout + one.stderr)
            expected = scene.losses()
            for run in range(options.runs):
                seed = options.seed * 1000 + run
                chance = random.Random(seed)
                fault = chosen[run % len(chosen)]
                begin = time.monotonic()
                try:
                    process = scene.start(f"{SAVES} {FIELDS.get(fault.__name__, '')}")
                    time.sleep(chance.uniform(0, 1.5))
                    fault(scene, process, chance)
                    judge_steps(scene, expected)
                    scene.require_nothing_left()
                    said = "as it should"
                except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as error:
                    said = f"WRONG: {error}"
                    wrong[fault.__name__] += 1
                print(f"{seed} {fault.__name__:18} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    print(f"{options.runs} runs, {sum(wrong.values())} wrong {dict(wrong) if wrong else ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
