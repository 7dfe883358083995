"""Test hosts: network namespaces on one switch, each with an address, an sshd, and a /root, /tmp and process table of its own.

    launcher (10.77.0.1)   a (10.77.0.2)   b (10.77.0.3)   …          bridge in a namespace of its own
       ssh ─────────────────▶ sshd            sshd

Needs root (namespaces, mounts) and openssh-server. Everything is named after this process and removed at the end; of the machine's
own network nothing is changed. This is a test's sshd: keys are made for it, nobody else can log in.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

PATIENCE = 600  # seconds after which something hangs


def missing():
    """Returns why test hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    for program, package in (("ip", "iproute2"), ("sshd", "./bootstrap sshd, or openssh-server"), ("ssh", "openssh-client"), ("unshare", "util-linux")):
        if not find(program):
            return f"needs {program} ({package})"
    made = subprocess.run(["unshare", "-n", "-m", "-p", "-f", "true"], capture_output=True, text=True, check=False)
    return None if made.returncode == 0 else "namespaces are not permitted here: " + made.stderr.strip()


CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
UNPACKED = CHECKOUT / "build/openssh"  # ./bootstrap sshd


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + f":/usr/sbin:/sbin:{UNPACKED}/usr/sbin")


def quiet(*words, check=True):
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and result.returncode != 0:
        raise RuntimeError(" ".join(words) + ": " + result.stderr)
    return result


def eventually(holds, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())


class Host:
    """`disk`: of its home, as a size that mount takes: "600M"; None: it shares the machine's disk."""

    def __init__(self, network, name, number, disk=None):
        self.network, self.name, self.address = network, name, f"10.77.0.{number + 1}"
        self.namespace = f"{network.prefix}{name}"
        self.cable = f"{network.prefix}{number}"
        self.tree = network.folder / name
        self.process = None
        self.disk = disk
        if disk:
            (self.tree / "root").mkdir(parents=True)
            quiet("mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(self.tree / "root"))
        for folder in ("root/.ssh", "tmp", "etc"):
            (self.tree / folder).mkdir(parents=True)
        users = pathlib.Path("/etc/passwd").read_text()
        if "\nsshd:" not in users:  # sshd wants such a user
            users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        (self.tree / "etc/passwd").write_text(users)
        quiet("ip", "netns", "add", self.namespace)
        quiet("ip", "link", "add", self.cable, "netns", network.switch, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        quiet("ip", "-n", network.switch, "link", "set", self.cable, "master", "bridge", "up")
        quiet("ip", "-n", self.namespace, "address", "add", self.address + "/24", "dev", "eth0")
        quiet("ip", "-n", self.namespace, "link", "set", "eth0", "up")
        quiet("ip", "-n", self.namespace, "link", "set", "lo", "up")

    def inside(self, command, own_processes=False):
        """The words that run a shell command on this host."""
        mounts = "" if self.name == "launcher" else f"mount -t tmpfs none {self.network.own} && "
        mounts += f"mount --bind {self.tree}/etc/passwd /etc/passwd && "
        mounts += "".join(self.own_folder(folder) for folder in ("root", "tmp"))
        pids = ["-p", "-f", "--mount-proc", "--kill-child"] if own_processes else []
        environment = ["env", "-u", "XDG_CACHE_HOME", "-u", "XDG_RUNTIME_DIR", "HOME=/root", "TMPDIR=/tmp"]
        return ["ip", "netns", "exec", self.namespace, *environment, "unshare", "-m", *pids, "sh", "-c", mounts + command]

    def own_folder(self, folder):
        """Commands that give this host a /root or /tmp of its own. A checkout that lies there stays in its place."""
        own, kept = self.tree / folder, ""
        if CHECKOUT.is_relative_to(f"/{folder}"):
            place = own / CHECKOUT.relative_to(f"/{folder}")
            kept = f"mkdir -p {place} && mount --bind {CHECKOUT} {place} && "
        return f"{kept}mount --rbind {own} /{folder} && "

    def serve(self, key):
        """Starts sshd, the first process of this host."""
        etc = self.tree / "etc"
        quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "host_key"))
        shutil.copy(key + ".pub", etc / "authorized_keys")
        (etc / "sshd_config").write_text(
            f"Port 22\nListenAddress {self.address}\nHostKey {etc}/host_key\nAuthorizedKeysFile {etc}/authorized_keys\n"
            f"PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n"
            f"PermitUserEnvironment yes\n"
            f"MaxStartups 100\n")
        libraries = ":".join(map(str, UNPACKED.glob("usr/lib/*-linux-gnu")))
        self.process = subprocess.Popen(
            self.inside(f"mkdir -p /run/sshd && LD_LIBRARY_PATH={libraries} exec {find('sshd')} -D -e -f {etc}/sshd_config", own_processes=True),
            stdout=subprocess.DEVNULL, stderr=open(etc / "sshd.log", "w"))

    def host_key(self):
        return (self.tree / "etc/host_key.pub").read_text().split()[:2]

    def processes(self):
        """{pid here: command line} of all that runs on this host, without sshd and its sessions."""
        found = {}
        mine = namespace_of(first_of(self.process.pid))
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or namespace_of(int(entry.name)) != mine:
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words and "sshd" not in words.split(" ")[0]:
                    found[int(entry.name)] = words
        return found

    def set_environment(self, lines=()):
        """Sets the environment of all logins from now on."""
        (self.tree / "root/.ssh/environment").write_text("".join(line + "\n" for line in lines))

    def bind(self, source, target):
        """Mounts `source` at `target` on this host. Returns a function that undoes it."""
        words = ["nsenter", "-m", "-t", str(first_of(self.process.pid))]
        quiet(*words, "mount", "--bind", str(source), str(target))
        return lambda: quiet(*words, "umount", "-l", str(target), check=False)

    def freeze(self):
        """All processes but sshd's, by the kernel's freezer: signals wait too. Returns how to undo it."""
        group = pathlib.Path(f"/sys/fs/cgroup/freezer/{self.namespace}")
        group.mkdir()

        def thaw():
            (group / "freezer.state").write_text("THAWED")
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            return eventually(lambda: removed(group))

        for pid in self.processes():
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        return thaw

    def left(self):
        """The processes and folders that a run has left here."""
        runs = self.tree / "root/.cache/trainctl/runs"
        return list(self.processes().values()) + ([str(p) for p in runs.iterdir()] if runs.exists() else [])

    def cut(self):
        quiet("ip", "-n", self.network.switch, "link", "set", self.cable, "down")

    def mend(self):
        quiet("ip", "-n", self.network.switch, "link", "set", self.cable, "up")

    def part_from(self, other):
        """Nothing of this host arrives at the other one, or back. Returns how to undo it."""
        ends = [(self, other), (other, self)]
        for at, to in ends:
            quiet("ip", "-n", at.namespace, "route", "add", "blackhole", to.address + "/32")
        return lambda: [quiet("ip", "-n", at.namespace, "route", "delete", to.address + "/32") for at, to in ends]

    def remove(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        quiet("ip", "netns", "delete", self.namespace, check=False)
        if self.disk:
            quiet("umount", "-l", str(self.tree / "root"), check=False)


def removed(group):
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def namespace_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def first_of(pid):
    """The process that `unshare -f` has started: the first of its namespace."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    while True:
        below = children.read_text().split()
        if not below:
            return pid
        pid = int(below[0])
        if namespace_of(pid) != namespace_of(os.getpid()):
            return pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")


class Network:
    """`with Network(folder, ["a", "b"]) as network`: a launcher's host and the hosts of these names. `disks`: see Host.

    `own`: a folder that only the launcher's host has; on the others it is empty."""

    def __init__(self, folder, names, disks=None):
        self.disks = disks or {}
        self.folder = pathlib.Path(folder)
        self.own = self.folder / "own"
        self.prefix = f"t{os.getpid() % 100000}"
        self.switch = self.prefix + "sw"
        self.names, self.hosts, self.launcher = names, {}, None

    def __enter__(self):
        self.own.mkdir(exist_ok=True)
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        quiet("ip", "netns", "add", self.switch)
        quiet("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        quiet("ip", "-n", self.switch, "link", "set", "bridge", "up")
        self.launcher = Host(self, "launcher", 0)
        key = str(self.launcher.tree / "root/.ssh/id_ed25519")
        quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        for number, name in enumerate(self.names, 1):
            self.hosts[name] = Host(self, name, number, self.disks.get(name))
            self.hosts[name].serve(key)
        ssh = self.launcher.tree / "root/.ssh"
        (ssh / "config").write_text("".join(f"Host {h.name}\n  HostName {h.address}\n  User root\n" for h in self.hosts.values()))
        (ssh / "known_hosts").write_text("".join(f"{h.address} {' '.join(h.host_key())}\n" for h in self.hosts.values()))
        for path in (ssh / "config", ssh / "known_hosts", ssh):
            os.chmod(path, 0o700 if path.is_dir() else 0o600)
        for host in self.hosts.values():
            if not eventually(lambda: self.run(f"ssh -oBatchMode=yes {host.name} true").returncode == 0):
                raise RuntimeError(f"{host.name}: " + self.run(f"ssh -oBatchMode=yes {host.name} true").stderr +
                                   (host.tree / "etc/sshd.log").read_text())

    def run(self, command, **options):
        """A shell command on the launcher's host, to its end."""
        return subprocess.run(self.launcher.inside(command), capture_output=True, text=True, check=False, **options)

    def start(self, command, output):
        """The same in the background, its output into a file."""
        return subprocess.Popen(self.launcher.inside("exec " + command), stdout=open(output, "w"), stderr=subprocess.STDOUT,
                                start_new_session=True)

    def __exit__(self, *_):
        for host in [*self.hosts.values(), *([self.launcher] if self.launcher else [])]:
            host.remove()
        quiet("ip", "netns", "delete", self.switch, check=False)
