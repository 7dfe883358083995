"""The traces of a run on the host, read from /proc: processes with its mark, their sockets and shared memory."""

import ctypes
import os
import socket
import subprocess

MARK = "TRAINCTL_CAMPAIGN"
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # the same numbers on every architecture


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def environment(pid):
    return dict(entry.split(b"=", 1) for entry in read(f"/proc/{pid}/environ").split(b"\0") if b"=" in entry)


def words(pid):
    return read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def state(pid):
    """The state's letter ("" if there is no such process) and the parent."""
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    if ")" not in text:
        return "", 0
    fields = text[text.rindex(")") + 2:].split()
    return fields[0], int(fields[1])


def marked(mark):
    """Processes of a run, without zombies."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and entry in read(f"/proc/{name}/environ").split(b"\0") and state(name)[0] not in ("Z", "X", ""):
            found.append(int(name))
    return found


def children(pid):
    """The children of the process's main thread."""
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def ranks(launcher):
    """{rank: pid} of a launcher's ranks that have reached exec."""
    found = {}
    for child in children(launcher):
        line = words(child)
        if "worker" in line and "--rank" in line:
            found[int(line[line.index("--rank") + 1])] = child
        elif b"LOCAL_RANK" in (env := environment(child)):
            found[int(env[b"RANK"])] = child
    return found


def sockets(pid):
    """{descriptor: inode}."""
    found = {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found[int(fd)] = int(target[8:-1])
    except OSError:
        pass
    return found


def tcp():
    """{inode: (local address, local port, remote port, listens)} of IPv4 and IPv6."""
    found = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(path).decode().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].rsplit(":", 1)
            found[int(fields[9])] = (address, int(port, 16), int(fields[2].rsplit(":", 1)[1], 16), fields[3] == "0A")
    return found


def listening(pids):
    """{inode: port} of the sockets that processes listen on. A port may soon be another program's, an inode number may not."""
    table = tcp()
    return {inode: table[inode][1] for pid in pids for inode in sockets(pid).values() if inode in table and table[inode][3]}


def still_listening(listeners):
    """Ports of those sockets that still listen."""
    table = tcp()
    return [port for inode, port in listeners.items() if inode in table and table[inode][3]]


def gpu_memory():
    """MiB in use, one number per GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


def shut_connections_to(pid, port):
    """Shuts the sockets of a process that are connected to `port`, like a failing network. Returns their number."""
    libc = ctypes.CDLL(None, use_errno=True)
    table = tcp()
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    if pidfd < 0:
        return 0
    count = 0
    for fd, inode in sockets(pid).items():
        if inode not in table or table[inode][3] or table[inode][2] != port:
            continue
        copy = libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
        if copy < 0:
            continue
        connection = socket.socket(fileno=copy)
        try:
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:
            pass
        connection.close()
    os.close(pidfd)
    return count
