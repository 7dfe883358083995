"""The real mpirun of Open MPI and mpiexec of MPICH over two test hosts (tests/hosts/network.py): each process becomes the agent of
its host.

    python3 tests/clusters/mpirun_test.py TRAINCTL [--only NAME]

Needs root, since it makes network namespaces, and Open MPI (./bootstrap clusters); exits with 77 and the reason where it cannot run.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import judge
from judge import JOB, PLAIN, ROOT, require

sys.path.insert(0, str(ROOT / "tests/hosts"))
import network  # noqa: E402

UNPACKED = ROOT / "build/clusters"
LIBRARIES = UNPACKED / "usr/lib/x86_64-linux-gnu"


def unpacked_environment():
    """Open MPI finds its parts where ./bootstrap clusters has put them."""
    return {"OPAL_PREFIX": f"{UNPACKED}/usr", "OPAL_LIBDIR": f"{LIBRARIES}/openmpi/lib", "OPAL_PKGLIBDIR": f"{LIBRARIES}/openmpi/lib/openmpi3",
            "OPAL_PKGDATADIR": f"{UNPACKED}/usr/share/openmpi", "OPAL_SYSCONFDIR": f"{UNPACKED}/etc", "PMIX_INSTALL_PREFIX": f"{LIBRARIES}/pmix2",
            "LD_LIBRARY_PATH": f"{LIBRARIES}:{LIBRARIES}/pmix2/lib"}


def find():
    """(mpirun, orted, environment); None where there is none."""
    if found := shutil.which("mpirun"):
        return found, shutil.which("orted") or "orted", {}
    mpirun, orted = UNPACKED / "usr/bin/orterun", UNPACKED / "usr/bin/orted"
    return (str(mpirun), str(orted), unpacked_environment()) if mpirun.exists() and orted.exists() else None


def find_hydra():
    """MPICH's mpiexec; None where there is none."""
    unpacked = UNPACKED / "usr/bin/mpiexec.hydra"
    return shutil.which("mpiexec.hydra") or (str(unpacked) if unpacked.exists() else None)


class Scene:
    def __init__(self, hosts, trainctl):
        self.network, self.trainctl, self.number = hosts, trainctl, 0

    def mpirun(self, options, fields):
        self.number += 1
        self.logs = pathlib.Path(self.network.folder) / f"logs.{self.number}"
        mpirun, orted, environment = find()
        set_all = " ".join(f"{name}={value}" for name, value in environment.items())
        return (f"env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {set_all} {mpirun} --mca plm_rsh_args '-oBatchMode=yes' "
                f"--mca orte_launch_agent 'env {set_all} {orted}' --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 {options} "
                f"{self.trainctl} run {JOB} launch.log_dir={self.logs} {PLAIN} {fields}")

    def mpiexec(self, options, fields):
        """MPICH's. Its proxies run on the hosts, from the folder of mpiexec itself; what was unpacked needs its libraries there."""
        self.number += 1
        self.logs = pathlib.Path(self.network.folder) / f"logs.{self.number}"
        libraries = f"LD_LIBRARY_PATH={LIBRARIES}" if str(UNPACKED) in find_hydra() else "UNUSED="
        ssh = pathlib.Path(self.network.folder) / "ssh_of_hydra"
        ssh.write_text(f'#!/bin/sh\n[ "$1" = -x ] && shift\nhost=$1\nshift\nexec ssh -oBatchMode=yes "$host" env {libraries} "$@"\n')
        ssh.chmod(0o755)
        return (f"env {libraries} {find_hydra()} -launcher ssh -launcher-exec {ssh} -localhost 10.77.0.1 {options} "
                f"{self.trainctl} run {JOB} launch.log_dir={self.logs} {PLAIN} {fields}")

    def one_host(self, fields):
        """The losses of a run without any manager."""
        self.number += 1
        self.logs = pathlib.Path(self.network.folder) / f"logs.{self.number}"
        one = subprocess.run([self.trainctl, "run", JOB, f"launch.log_dir={self.logs}", *PLAIN.split(), *fields.split()],
                             capture_output=True, text=True, check=False)
        require(one.returncode == 0, one.stdout + one.stderr)
        return self.losses()

    def losses(self):
        return judge.losses(self.logs / "1")

    def require_nothing_left(self):
        for host in self.network.hosts.values():
            require(network.eventually(lambda: not host.left()), f"left on {host.name}: {host.left()}")


def two_hosts(scene):
    """mpirun with two processes per host: four ranks on two hosts, with the losses of one host."""
    fields = "launch.ranks=4 train.steps=12"
    expected = scene.one_host(fields)
    said = scene.network.run(scene.mpirun("-n 4 --host a:2,b:2", fields), timeout=network.PATIENCE)
    require(said.returncode == 0 and "Open MPI: 2 hosts" in said.stdout, said.stdout + said.stderr)
    worst = judge.difference(expected, scene.losses(), 12)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    scene.require_nothing_left()
    return f"losses within {worst:.1e} of one host"


def mpich(scene):
    """MPICH's mpiexec with two processes per host: they find each other through PMI, and have the losses of one host."""
    if not find_hydra():
        return "left out: there is no mpiexec of MPICH (./bootstrap clusters)"
    fields = "launch.ranks=4 train.steps=12"
    expected = scene.one_host(fields)
    said = scene.network.run(scene.mpiexec("-n 4 -ppn 2 -hosts a,b", fields), timeout=network.PATIENCE)
    require(said.returncode == 0 and "MPICH: 2 hosts" in said.stdout, said.stdout + said.stderr)
    worst = judge.difference(expected, scene.losses(), 12)
    require(worst < 1e-4, f"losses differ by {worst:.2g}")
    scene.require_nothing_left()
    return f"losses within {worst:.1e} of one host"


def failed_rank(scene):
    """A killed rank ends the run on both hosts, and mpirun's exit code is not 0."""
    output = pathlib.Path(scene.network.folder) / "output"
    process = scene.network.start(scene.mpirun("-n 2 --host a,b", "launch.ranks=2 train.steps=1000000 train.epochs=1000000"), output)
    require(network.eventually(lambda: max(scene.losses(), default=0) >= 20 or process.poll() is not None) and process.poll() is None,
            output.read_text())
    worker = [pid for host in scene.network.hosts.values() for pid, words in host.processes().items() if " worker " in words and "--rank 1 " in words]
    require(len(worker) == 1, f"{worker}")
    os.kill(worker[0], 9)
    try:
        code = process.wait(network.PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        raise AssertionError("mpirun has not ended: " + output.read_text()) from None
    cause = json.loads((scene.logs / "1/error.json").read_text())["first_cause"]
    require(code != 0 and cause["rank"] == 1 and "SIGKILL" in cause["message"], f"{code} {cause}")
    scene.require_nothing_left()
    return f"exit code {code}: {cause['message'][:80]}"


CASES = [two_hosts, mpich, failed_rank]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl")
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    reason = network.missing() or (None if find() else "needs mpirun of Open MPI (./bootstrap clusters)")
    if reason:
        print("skipped: " + reason)
        return 77
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mpi.", dir=pathlib.Path(options.trainctl).resolve().parent) as folder:
        with network.Network(folder, ["a", "b"]) as hosts:
            scene = Scene(hosts, str(pathlib.Path(options.trainctl).resolve()))
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                begin = time.monotonic()
                try:
                    said = case(scene)
                except (AssertionError, OSError, subprocess.SubprocessError) as error:
                    said, failed = f"FAILED: {error}", failed + 1
                print(f"{case.__name__:12} {time.monotonic() - begin:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
