"""The faults that the campaign injects into runs, when it does, and the expected outcomes.

A fault is a function of a Scene that waits for its moment, injects the fault, and returns the Expected outcome.
"""

import contextlib
import dataclasses
import signal
import time

import host


@dataclasses.dataclass
class Expected:
    codes: set  # exit codes of the launcher, -N: killed by signal N
    rank: int = -1  # the first cause; -1: error.json is not checked
    kinds: tuple = ()  # the possible kinds of the first cause
    seconds: float = 0  # from the fault to the launcher's end, without the slack (--slack judges them)
    steps_agree: bool = False  # every rank says that it stopped after the same step
    restarts: int = 0


STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 138}


def stopped_by(number, scene, when):
    """Before the launcher handles signals they kill it, and no rank has been started."""
    early = {-number} if when == "start" else set()
    return Expected({STOPPED[number]} | early, seconds=scene.grace, steps_agree=when == "running" and scene.network)


# Signals to ranks from outside.


def kill_rank(scene, when):
    rank = scene.victim(when)
    scene.signal_rank(rank, signal.SIGKILL)
    return Expected({5}, rank, ("failed",), scene.grace)


def stop_rank(scene, when):
    rank = scene.victim(when)
    scene.signal_rank(rank, signal.SIGSTOP)
    if not scene.network:  # a program reports no progress, so this cannot be detected; but it must end with the others
        time.sleep(0.1)
        scene.launcher.send_signal(signal.SIGTERM)
        return Expected({143}, seconds=scene.grace)
    return Expected({5}, rank, ("silent",), scene.timeout + scene.grace)


def kill_after_restart(scene, when):
    rank = scene.victim(when)
    scene.signal_rank(rank, signal.SIGKILL)
    scene.wait_for("the ranks' second attempt", lambda: scene.notices().count("restarting all ranks (1 of 1)") == 1)
    scene.wait_for("new ranks", lambda: len(host.ranks(scene.launcher.pid)) == scene.ranks)
    time.sleep(scene.rng.uniform(0, 0.3))
    rank = scene.rng.randrange(scene.ranks)
    scene.signal_rank(rank, signal.SIGKILL)
    return Expected({5}, rank, ("failed",), scene.grace, restarts=1)


# The user's signals.


def interrupt(number):
    def inject(scene, when):
        scene.reach(when)
        scene.launcher.send_signal(number)
        return stopped_by(number, scene, when)

    return inject


def interrupt_twice(scene, when):
    scene.reach(when)
    scene.launcher.send_signal(signal.SIGINT)
    time.sleep(scene.rng.uniform(0, 0.05))
    with contextlib.suppress(ProcessLookupError):
        scene.launcher.send_signal(signal.SIGINT)
    expected = stopped_by(signal.SIGINT, scene, when)
    expected.steps_agree = False
    return expected


def kill_launcher(scene, when):
    scene.reach(when)
    scene.launcher.kill()
    return Expected({-signal.SIGKILL}, seconds=1)


def kill_rank_while_stopping(scene, when):
    rank = scene.victim(when)
    scene.launcher.send_signal(signal.SIGTERM)
    time.sleep(scene.rng.uniform(0, 0.02))
    scene.signal_rank(rank, signal.SIGKILL)
    return Expected({143, 5}, seconds=scene.grace)  # a busy launcher may see the death before the signal


# Faults ordered by TRAINCTL_TEST_FAULT.


def ordered_end(code, kinds):
    """A rank ends on its own: the time counts from then."""

    def inject(scene, when):
        rank = scene.ordered_rank
        gone = lambda: scene.launcher.poll() is not None or rank not in host.ranks(scene.launcher.pid)
        scene.wait_for(f"rank {rank}", lambda: not gone() or scene.launcher.poll() is not None)
        scene.wait_for(f"the end of rank {rank}", gone)
        return Expected({code}, rank, kinds, scene.grace)

    return inject


def ordered_silence(kinds):
    """Its beginning cannot be seen from outside, so the start-up counts as well."""

    def inject(scene, when):
        seconds = scene.timeout + scene.grace + START_UP_SECONDS
        scene.wait_for_end()
        return Expected({5}, scene.ordered_rank, kinds, seconds)

    return inject


def exit_early_of_program(scene, when):
    """Programs may end at any time; the others continue."""
    scene.reach("running")
    time.sleep(0.3)
    assert scene.launcher.poll() is None, "the run ended with one rank that exited 0"
    scene.launcher.send_signal(signal.SIGTERM)
    return Expected({143}, seconds=scene.grace)


# The network, and the disk.


def close_store(scene, when):
    """A closed connection must not stop a run: a new one is opened."""
    scene.reach(when)
    places = host.listening([scene.launcher.pid])
    if when == "running":
        time.sleep(1.2)  # positions go to the store once a second
    for port in places.values():
        for pid in [scene.launcher.pid, *host.ranks(scene.launcher.pid).values()]:
            scene.closed += host.shut_connections_to(pid, port)
    scene.reach("running")
    time.sleep(1.2)
    scene.launcher.send_signal(signal.SIGTERM)
    return stopped_by(signal.SIGTERM, scene, "running")


def full_disk(scene, when):
    scene.reach("running")
    scene.wait_for("the notice of a full disk", lambda: "cannot write" in scene.notices())
    time.sleep(0.2)
    assert scene.launcher.poll() is None, "the run ended with the disk full"
    scene.launcher.send_signal(signal.SIGTERM)
    return Expected({143}, seconds=scene.grace)


@dataclasses.dataclass
class Kind:
    name: str
    inject: object
    jobs: tuple  # shm, gloo, command, deaf (a command that ignores SIGTERM), escaping (a command that starts its own session)
    whens: tuple = ("start", "running")
    order: str = ""  # the value of TRAINCTL_TEST_FAULT without its rank, or of the program's own variable
    restarts: int = 0
    full_disk: bool = False


START_UP_SECONDS = 5
ENGINE = ("shm", "gloo")
ANY = ("shm", "gloo", "command", "deaf", "escaping")

KINDS = [
    Kind("SIGKILL of a rank", kill_rank, ("shm", "shm", "gloo", "command", "escaping")),
    Kind("SIGSTOP of a rank", stop_rank, ("shm", "shm", "gloo", "command")),
    Kind("SIGKILL of the launcher", kill_launcher, ANY),
    Kind("Ctrl-C", interrupt(signal.SIGINT), ANY),
    Kind("Ctrl-C twice", interrupt_twice, ANY),
    Kind("SIGTERM", interrupt(signal.SIGTERM), ANY),
    Kind("SIGUSR1", interrupt(signal.SIGUSR1), ("shm", "gloo", "command")),
    Kind("exits 0 early", ordered_end(5, ("ended early",)), ENGINE, ("step",), "exit0"),
    Kind("exits 0 early", exit_early_of_program, ("command",), ("running",), "exit0"),
    Kind("exits 3", ordered_end(5, ("failed",)), ("shm", "gloo", "command"), ("step",), "exit3"),
    Kind("never starts", ordered_silence(("silent",)), ENGINE, ("step 0",), "hang"),
    Kind("hangs", ordered_silence(("silent",)), ENGINE, ("step",), "hang"),
    Kind("skips a collective", ordered_silence(("failed", "silent")), ("shm",), ("step",), "skip"),
    Kind("closed store connections", close_store, ("gloo",)),
    Kind("full log disk", full_disk, ("shm", "command"), ("running",), full_disk=True),
    Kind("SIGKILL of a rank at the end", kill_rank_while_stopping, ANY, ("running",)),
    Kind("SIGKILL, restart, SIGKILL", kill_after_restart, ("shm", "gloo", "command"), ("running",), restarts=1),
]


def plan(index, rng, rank_counts):
    """Chooses one fault: kinds take turns, everything else is random."""
    kind = KINDS[index % len(KINDS)]
    return kind, rng.choice(kind.jobs), rng.choice(kind.whens), rng.choice(rank_counts)
