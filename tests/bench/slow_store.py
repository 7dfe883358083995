#!/usr/bin/env python3
"""Serves the files of a folder as an S3 store (path style; signatures are not checked) and over http, with range requests. Each request is
answered after a delay. GET /stats returns the number of requests and bytes, and the most requests at once.

    slow_store.py FOLDER PORT [--delay 0.2]
"""
import argparse
import hashlib
import http.server
import json
import os
import pathlib
import threading
import time
import urllib.parse

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("port", type=int)
parser.add_argument("--delay", type=float, default=0.2)
options = parser.parse_args()
lock, stats = threading.Lock(), {"requests": 0, "bytes": 0, "now": 0, "most": 0}


def tag_of(path):
    return '"' + hashlib.md5(str(path).encode()).hexdigest() + '"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path == "/stats":
            return self.answer(200, json.dumps(stats).encode())
        with lock:
            stats["requests"] += 1
            stats["now"] += 1
            stats["most"] = max(stats["most"], stats["now"])
        try:
            time.sleep(options.delay)
            self.serve()
        except OSError:
            self.close_connection = True
        finally:
            with lock:
                stats["now"] -= 1

    def serve(self):
        path, _, query = self.path.partition("?")
        words = urllib.parse.parse_qs(query)
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if "list-type" in words:
            prefix = words.get("prefix", [""])[0]
            files = sorted(p for p in (options.folder / bucket).rglob("*") if p.is_file() and str(p.relative_to(options.folder / bucket)).startswith(prefix))
            entries = "".join(f"<Contents><Key>{p.relative_to(options.folder / bucket)}</Key><ETag>{tag_of(p)}</ETag><Size>{p.stat().st_size}</Size></Contents>" for p in files)
            body = f"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            return self.answer(200, body.encode(), Content_Type="application/xml")
        file = options.folder / bucket / key
        if not file.is_file():
            return self.answer(404)
        size, tag = file.stat().st_size, tag_of(file)
        begin, end, partial = 0, size - 1, self.headers.get("Range")
        if partial:
            first, _, last = partial.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) if last else size - 1, size - 1)
            if begin >= size:
                return self.answer(416, Content_Range=f"bytes */{size}")
        self.send_response(206 if partial else 200)
        self.send_header("ETag", tag)
        self.send_header("Accept-Ranges", "bytes")
        if partial:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        with open(file, "rb") as source:
            sent = 0
            while sent < end - begin + 1:
                sent += os.sendfile(self.connection.fileno(), source.fileno(), begin + sent, end - begin + 1 - sent)
        with lock:
            stats["bytes"] += end - begin + 1


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 512


Server(("127.0.0.1", options.port), Handler).serve_forever()
