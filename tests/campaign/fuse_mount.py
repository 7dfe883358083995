#!/usr/bin/env python3
"""fuse_mount.py FOLDER AT NAME hang|hang-open|hang-late|fail: mounts FOLDER at AT, read-only, with the kernel's FUSE protocol.

fail       reads of files, and lists of folders, whose path ends with NAME fail with EIO
hang       they are never answered, as of a network file system whose server is gone
hang-open  nor is their opening: not even SIGKILL ends a process that waits for that
hang-late  all reads hang, once FOLDER has a file "hang"

Prints "mounted"; when its stdin ends it unmounts, and what waits fails. Exits with 77 where it may not mount."""

import ctypes
import errno
import os
import select
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 28, 29, 36, 42)
NO_ANSWER = {FORGET, INTERRUPT, BATCH_FORGET}
VALID = 3600  # seconds that the kernel may keep names and attributes
ASYNC_READ = 1  # as most servers: a process that waits for pages can be killed
DIRECT_IO = 1  # what was read once is read again
MNT_DETACH = 2


class Failed(Exception):
    def __init__(self, error):
        self.error = error


class Mount:
    def __init__(self, folder, at, name, fault):
        self.folder, self.name, self.fault = folder, name, fault
        self.paths, self.nodes = {1: folder}, {folder: 1}
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.at = at
        try:
            self.device = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            sys.exit(self.cannot(error.strerror))
        options = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        if self.libc.mount(b"trainctl_test", at.encode(), b"fuse", 1, options.encode()) != 0:  # 1: MS_RDONLY
            sys.exit(self.cannot(os.strerror(ctypes.get_errno())))

    @staticmethod
    def cannot(why):
        print(f"cannot mount FUSE here: {why}", file=sys.stderr)
        return 77

    def attributes(self, path):
        try:
            of = os.stat(path)
        except OSError as error:
            raise Failed(error.errno)
        return struct.pack("<6Q10I", self.node(path), of.st_size, of.st_blocks, int(of.st_atime), int(of.st_mtime), int(of.st_ctime), 0, 0, 0,
                           of.st_mode, of.st_nlink, of.st_uid, of.st_gid, 0, 4096, 0)

    def node(self, path):
        if path not in self.nodes:
            self.nodes[path] = len(self.nodes) + 1
            self.paths[self.nodes[path]] = path
        return self.nodes[path]

    def entries(self, path, offset, size):
        out = b""
        for i, name in enumerate(sorted(os.listdir(path)), 1):
            if i <= offset:
                continue
            kind = stat.S_IFMT(os.stat(os.path.join(path, name)).st_mode) >> 12
            text = name.encode()
            entry = struct.pack("<QQII", self.node(os.path.join(path, name)), i, len(text), kind) + text
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out

    def answer(self, opcode, node, body):
        """The answer's body; None: there is none."""
        path = self.paths.get(node)
        if opcode == INIT:
            return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, ASYNC_READ, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)
        if opcode == LOOKUP:
            inner = os.path.join(path, body.rstrip(b"\0").decode())
            attributes = self.attributes(inner)
            return struct.pack("<4Q2I", self.node(inner), 0, VALID, VALID, 0, 0) + attributes
        if opcode == GETATTR:
            return struct.pack("<Q2I", VALID, 0, 0) + self.attributes(path)
        if opcode in (OPEN, OPENDIR):
            if self.fault == "hang-open" and path.endswith(self.name):
                return None
            return struct.pack("<Q2I", 0, DIRECT_IO if self.fault == "hang-late" else 0, 0)
        if opcode in (READ, READDIR):
            _, offset, size = struct.unpack_from("<QQI", body)
            if opcode == READDIR:
                if path.endswith(self.name):
                    if self.fault == "hang":
                        return None
                    raise Failed(errno.EIO)
                return self.entries(path, offset, size)
            if self.fault == "hang-late" and os.path.exists(os.path.join(self.folder, "hang")):
                return None
            if path.endswith(self.name):
                if self.fault == "hang":
                    return None
                raise Failed(errno.EIO)
            with open(path, "rb") as file:
                return os.pread(file.fileno(), size, offset)
        if opcode == STATFS:
            return struct.pack("<5Q4I24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        raise Failed(errno.ENOSYS)

    def serve(self):
        print("mounted", flush=True)
        while True:
            ready = select.select([self.device, sys.stdin], [], [])[0]
            if sys.stdin in ready and not sys.stdin.read(1):
                break
            if self.device not in ready:
                continue
            try:
                request = os.read(self.device, 1 << 18)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted by others
                    return
                continue  # interrupted before it was read
            size, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode in NO_ANSWER:
                continue
            error, body = 0, b""
            try:
                body = self.answer(opcode, node, request[40:size])
            except Failed as failed:
                error = failed.error
            if body is not None:
                os.write(self.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        self.libc.umount2(self.at.encode(), MNT_DETACH)
        os.close(self.device)  # ends what waits


Mount(*sys.argv[1:]).serve()
