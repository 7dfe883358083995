"""Cases of hosts_test.py: when a rank, an agent, the launcher or a cable fails, the run ends everywhere or restarts."""
import os
import pathlib
import re
import signal
import subprocess
import time

from network import eventually
from scene import checkpoints, end_of, require, stop


def killed_rank(scene):
    """A killed rank of a host is the first cause, with its host; all others end."""
    process = scene.start("")
    host, pid = scene.rank(3)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    code = end_of(process)
    took = time.monotonic() - begin
    cause = scene.cause()
    require(code == 5 and cause["rank"] == 3 and cause["host"] == "b" and "SIGKILL" in cause["message"], f"{code} {cause}")
    require(host.name == "b", f"rank 3 ran on {host.name}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def kill_agent(host):
    agents = [pid for pid, words in host.processes().items() if " agent " in words and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "trainctl-agent"]
    require(agents, f"agents of {host.name}: {host.processes()}")
    for pid in agents:
        os.kill(pid, signal.SIGKILL)


def killed_agent(scene):
    """A host whose agent was killed is lost at once, and its ranks do not outlive the agent."""
    process = scene.start("")
    begin = time.monotonic()
    kill_agent(scene.network.hosts["b"])
    code = end_of(process)
    took = time.monotonic() - begin
    cause = scene.cause()
    require(code == 5 and cause["host"] == "b", f"{code} {cause}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def killed_launcher(scene):
    """After the launcher's death nothing is left on any host once launch.reconnect is over."""
    process = scene.start("launch.reconnect=8s")
    begin = time.monotonic()
    launchers = subprocess.run(["pgrep", "-f", f"^{scene.trainctl} run .*{scene.logs}"], capture_output=True, text=True, check=False)
    require(launchers.stdout.split(), "the launcher runs")
    for pid in launchers.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    end_of(process)
    scene.require_nothing_left()
    return f"nothing left after {time.monotonic() - begin:.1f} s"


def cut_cable(scene):
    """A cable that is cut for a second costs nothing but time."""
    process = scene.start("")
    before = scene.step()
    scene.network.hosts["b"].cut()
    time.sleep(1)
    scene.network.hosts["b"].mend()
    require(eventually(lambda: scene.step() > before + 20 or process.poll() is not None) and process.poll() is None,
            "it continues: " + scene.output.read_text())
    stop(scene, process)
    return f"from step {before} to {scene.step()}"


def cut_for_good(scene):
    """A host that stays away for launch.reconnect is named, and everything ends on both sides of the cut."""
    process = scene.start("launch.reconnect=8s")
    begin = time.monotonic()
    scene.network.hosts["b"].cut()
    try:
        code = end_of(process)
        took = time.monotonic() - begin
        cause = scene.cause()
        require(code == 5 and cause["host"] == "b" and "has not responded for 8 s" in cause["message"], f"{code} {cause}")
        scene.require_nothing_left()
    finally:
        scene.network.hosts["b"].mend()
    return f"ended after {took:.1f} s: {cause['message'][:80]}"


def restarted(scene):
    """With launch.max_restarts a killed rank costs the steps since the last checkpoint, on all hosts."""
    process = scene.start("launch.max_restarts=1 train.checkpoint.every_steps=20")
    require(eventually(lambda: checkpoints(scene)), "it saves: " + scene.output.read_text())
    os.kill(scene.rank(2)[1], signal.SIGKILL)
    require(eventually(lambda: "resuming after step" in scene.output.read_text()), "it continues: " + scene.output.read_text())
    resumed = int(re.search(r"resuming after step (\d+)", scene.output.read_text()).group(1))
    require(eventually(lambda: scene.step() > resumed + 10), "it trains: " + scene.output.read_text())
    require(stop(scene, process) == 130, scene.output.read_text())
    scene.require_nothing_left()
    return f"continued after step {resumed}"


def parted(scene):
    """Two hosts that lose each other, but not the launcher: the link is named, and not a rank."""
    process = scene.start("launch.timeout=5s")
    begin = time.monotonic()
    mend = scene.network.hosts["a"].part_from(scene.network.hosts["b"])
    try:
        code = end_of(process)
        took = time.monotonic() - begin
    finally:
        mend()
    cause = scene.cause()
    require(code == 5 and cause["kind"] == "link" and "the link host a <-> host b is broken" in cause["message"], f"{code} {cause}")
    scene.require_nothing_left()
    return f"ended after {took:.1f} s: {cause['message'][:100]}"
