"""Plays a cluster: network namespaces as pods, and the commands and environments that the rendered manifests give them.

A pod here is a host of tests/hosts/network.py without an sshd, with an /etc/hosts of its own: a name is there when the played cluster
writes it. What only a real cluster shows (eviction, DNS under load, image pulls) is not shown.
"""
import contextlib
import os
import pathlib
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hosts"))
import network  # noqa: E402


class Pods(network.Network):
    """`with Pods(folder, ["mnist-0.mnist", …]) as pods`: no process runs yet, and no name resolves."""

    def make(self):
        network.quiet("ip", "netns", "add", self.switch)
        network.quiet("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        network.quiet("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names, 1):
            self.hosts[name] = network.Host(self, f"p{number - 1}", number)
            (self.hosts[name].tree / "etc/hosts").write_text("127.0.0.1 localhost\n")

    def resolve(self, *names):
        """From now on these names are known to all pods, and no others."""
        lines = "".join(f"{self.hosts[name].address} {name}\n" for name in names)
        for host in self.hosts.values():
            (host.tree / "etc/hosts").write_text("127.0.0.1 localhost\n" + lines)

    def start(self, name, words, variables, output):
        """A pod's container."""
        host = self.hosts[name]
        command = f"mount --bind {host.tree}/etc/hosts /etc/hosts && exec env " + " ".join(
            [f"{key}={value}" for key, value in variables.items()] + list(words))
        return subprocess.Popen(host.inside(command, own_processes=True), stdout=open(output, "a"), stderr=subprocess.STDOUT,
                                start_new_session=True)

    def signal(self, process, number):
        """To the container's own process, as a kubelet sends it."""
        with contextlib.suppress(OSError):
            os.kill(network.first_of(process.pid), number)


def container(folder, index, uid="f81d4fae-7dec-11d0-a765-00a0c91e6bf6"):
    """(words, variables) of a pod of an Indexed Job that was rendered into a folder; its config map's files are there."""
    job = [one for one in yaml.safe_load_all((pathlib.Path(folder) / "job.yaml").read_text()) if one["kind"] == "Job"][0]
    pod, = job["spec"]["template"]["spec"]["containers"]
    config_file = pathlib.Path(folder) / "config.yaml"  # a job with env is in the Secret
    secret = yaml.safe_load((pathlib.Path(folder) / "secret.yaml").read_text())["stringData"]
    config = yaml.safe_load(config_file.read_text())["data"] if config_file.exists() else {"job.yaml": secret["job.yaml"]}
    mounted = pathlib.Path(folder) / "config"
    if not mounted.exists():  # Pods that were started earlier may be reading the files of this folder.
        mounted.mkdir()
        for name, text in config.items():
            (mounted / name).write_text(text)
    words = [word.replace("/etc/trainctl", f"{folder}/config") for word in pod["args"]]
    variables = {"JOB_COMPLETION_INDEX": str(index)}
    labels = {"metadata.labels['controller-uid']": uid}  # the Job's controller sets it
    for one in pod["env"]:
        source = one.get("valueFrom", {})
        variables[one["name"]] = (one["value"] if "value" in one else secret[source["secretKeyRef"]["key"]] if "secretKeyRef" in source
                                  else labels[source["fieldRef"]["fieldPath"]])
    return words, variables
