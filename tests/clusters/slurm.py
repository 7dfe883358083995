"""A real Slurm on this machine: slurmctld, munged and several slurmd, which are the nodes n1, n2, ….

Needs root, and the programs: of the system, or unpacked by ./bootstrap slurm (nothing is installed). All of it lives in one folder,
listens on loopback with ports of its own, and is stopped at the end.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

UNPACKED = pathlib.Path(__file__).resolve().parents[2] / "build/clusters"
LIBRARIES = UNPACKED / "usr/lib/x86_64-linux-gnu"


def find(name):
    folders = os.environ.get("PATH", "") + f":/usr/sbin:/sbin:{UNPACKED}/usr/bin:{UNPACKED}/usr/sbin"
    for called in (name, name + "-wlm"):
        if found := shutil.which(called, path=folders):
            return found
    return None


def missing():
    """Returns why no Slurm can be started here; None if one can."""
    if os.geteuid() != 0:
        return "needs root: slurmd starts steps as other users"
    for name in ("slurmctld", "slurmd", "slurmstepd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel", "unshare"):
        if not find(name):
            return f"needs {name} (./bootstrap clusters)"
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return None if made.returncode == 0 else "namespaces are not permitted here: " + made.stderr.strip()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


PATIENCE = 600  # seconds after which something hangs


def eventually(holds, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.1)
    return bool(holds())


class Slurm:
    """`with Slurm(folder, 2) as slurm`: run() and output() are on the login node."""

    def __init__(self, folder, nodes):
        self.folder = pathlib.Path(folder)
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.daemons = {}
        self.environment = dict(os.environ)
        for name in [name for name in self.environment if name.startswith(("SLURM_", "OMPI_", "PMI"))]:
            del self.environment[name]
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.environment["HOME"] = str(self.folder / "home")
        self.environment["PATH"] += f":{self.folder}/bin"
        self.environment.pop("XDG_STATE_HOME", None)
        self.environment.pop("XDG_RUNTIME_DIR", None)
        self.environment["XDG_RUNTIME_DIR"] = str(self.folder / "runtime")
        self.environment["LD_LIBRARY_PATH"] = f"{LIBRARIES}:{LIBRARIES}/slurm-wlm:{LIBRARIES}/pmix2/lib"

    def with_pmix(self, words):
        """Slurm's plugin opens the library of PMIx at its place in the system. What was unpacked is laid over that, for these
        processes alone."""
        system, over = pathlib.Path("/usr/lib/x86_64-linux-gnu"), self.folder / "over"
        if (system / "pmix2/lib/libpmix.so").exists() or not (LIBRARIES / "pmix2/lib").exists():
            return words
        if not over.exists():
            shutil.copytree(LIBRARIES / "pmix2", over / "pmix2", symlinks=True)
            (over / "pmix2/lib/libpmix.so").symlink_to("libpmix.so.2")
        lay = f"mount -t overlay overlay -o lowerdir={over}:{system} {system} 2>/dev/null"
        return ["unshare", "-m", "sh", "-c", f'{lay}; exec "$@"', "sh", *words]

    def configure(self):
        control, *ports = free_ports(1 + len(self.nodes))
        for name in ("state", "home", "bin", "runtime", *self.nodes, *(f"tmp.{node}" for node in self.nodes)):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        for name in ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo"):
            (self.folder / "bin" / name).symlink_to(find(name))
        self.munge_socket = self.folder / "munge.socket"
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        plugins = LIBRARIES / "slurm-wlm"
        plugin_line = f"PluginDir={plugins}\n" if plugins.exists() else ""
        nodes = "".join(f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000\n"
                        for name, port in zip(self.nodes, ports))
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={control}\n{plugin_line}"
            f"SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCryptoType=crypto/munge\n"
            f"AuthInfo=socket={self.munge_socket}\nStateSaveLocation={self.folder}/state\n"
            f"SlurmdSpoolDir={self.folder}/%n\nTmpFS={self.folder}/tmp.%n\nSlurmctldPidFile={self.folder}/slurmctld.pid\nSlurmdPidFile={self.folder}/%n.pid\n"
            f"SlurmctldLogFile={self.folder}/slurmctld.log\nSlurmdLogFile={self.folder}/%n.log\nSlurmdParameters=config_overrides\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
            "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\n"
            "SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nSlurmdTimeout=20\nSlurmctldTimeout=30\nInactiveLimit=0\n"
            "MinJobAge=300\nKillWait=5\nWaittime=0\nSchedulerType=sched/backfill\nJobRequeue=1\n"
            "SchedulerParameters=requeue_setup_env_fail,sched_interval=5,bf_interval=5,batch_sched_delay=1\n"
            f"{nodes}PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP\n")

    def daemon(self, name, *words):
        log = open(self.folder / f"{name}.out", "a")
        self.daemons[name] = subprocess.Popen(words, env={**self.environment, "TEST_NODE": name}, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self):
        try:
            self.configure()
            self.daemon("munged", find("munged"), "--foreground", "--force", f"--socket={self.munge_socket}",
                        f"--key-file={self.folder}/munge.key", f"--log-file={self.folder}/munge.log",
                        f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed")
            if not eventually(self.munge_socket.exists):
                raise RuntimeError("munged does not start: " + self.logs("munged.out"))
            self.daemon("slurmctld", find("slurmctld"), "-D", "-i")
            for node in self.nodes:
                self.start_node(node)
            if not eventually(lambda: all(self.state(node).startswith("IDLE") for node in self.nodes)):
                raise RuntimeError("the nodes do not come up: " + self.logs("slurmctld.log", "slurmctld.out", "n1.log", "n1.out"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def logs(self, *names):
        return "".join(f"\n-- {name}\n" + (self.folder / name).read_text()[-1500:] for name in names if (self.folder / name).exists())

    def start_node(self, node):
        self.daemon(node, *self.with_pmix([find("slurmd"), "-D", "-N", node, "-d", find("slurmstepd")]))

    def fail_node(self, node):
        """The node is gone: its slurmd and all that it has started."""
        for pid in descendants(self.daemons[node].pid):
            os.kill(pid, signal.SIGKILL)
        for pid in steps_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons.pop(node).wait()

    def state(self, node):
        found = self.output("scontrol", "show", "node", node, "--oneliner")
        return found.split("State=", 1)[1].split()[0] if "State=" in found else ""

    def run(self, *words, **options):
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False, **options)

    def output(self, *words):
        return self.run(find(words[0]), *words[1:]).stdout

    def job(self, number):
        """Its fields, as scontrol shows them."""
        text = self.output("scontrol", "show", "job", str(number), "--oneliner")
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def __exit__(self, *_):
        if (self.folder / "slurm.conf").exists() and "slurmctld" in self.daemons:
            for line in self.output("squeue", "--noheader", "--format=%A").split():
                self.run(find("scancel"), line)
            eventually(lambda: not self.output("squeue", "--noheader").strip(), 60)
        for name in [*self.nodes, "slurmctld", "munged"]:
            if process := self.daemons.pop(name, None):
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def descendants(pid):
    """A process and all below it."""
    found = [pid]
    for one in found:
        try:
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                found += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            pass
    return found


def steps_of(node):
    """slurmstepd and what it starts leave their slurmd; their environment names the node."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TEST_NODE={node}".encode() in words or f"SLURMD_NODENAME={node}".encode() in words:
            found.append(int(entry.name))
    return found
