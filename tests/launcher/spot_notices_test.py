"""launch.spot_notices: a notice of the metadata service ends a run with a checkpoint and exit code 75, and the run resumes.

    python3 tests/launcher/spot_notices_test.py TRAINCTL

The metadata services of AWS (IMDSv2), Google Cloud and Azure are simulated on loopback. A notice comes once the run has trained some steps.
"""
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/clusters"))
import judge  # noqa: E402
from judge import JOB, PLAIN, require  # noqa: E402

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
REQUEUE, TOKEN = 75, "token-of-the-test"


class Service(http.server.BaseHTTPRequestHandler):
    """The three services; `server.announces` says whether the host will be taken away."""

    def answer(self, status, body=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        wanted = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200, TOKEN) if wanted else self.answer(400)

    def do_GET(self):
        announces = self.server.announces()
        self.server.asked.append(self.path)
        if self.path == "/latest/meta-data/spot/instance-action":
            if self.headers["X-aws-ec2-metadata-token"] != TOKEN:
                return self.answer(401)
            return self.answer(200, json.dumps({"action": "terminate", "time": "2026-11-29T17:02:00Z"})) if announces else self.answer(404)
        if self.path == "/computeMetadata/v1/instance/preempted" and self.headers["Metadata-Flavor"] == "Google":
            return self.answer(200, "TRUE" if announces else "FALSE")
        if self.headers["Metadata"] == "true" and self.path.startswith("/metadata/instance/compute/name?"):
            return self.answer(200, "vm_0")
        if self.headers["Metadata"] == "true" and self.path.startswith("/metadata/scheduledevents?"):
            events = [{"EventType": "Preempt", "Resources": ["vm_1"], "NotBefore": "now"}]  # of another host
            if announces:
                events.append({"EventType": "Preempt", "Resources": ["vm_0"], "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"})
            return self.answer(200, json.dumps({"DocumentIncarnation": 1, "Events": events}))
        return self.answer(404)

    def log_message(self, *_):
        pass


def notice(cloud, announced):
    with tempfile.TemporaryDirectory() as folder, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        logs = pathlib.Path(folder) / "logs"
        steps = lambda run: max(judge.losses(logs / str(run)), default=0)
        server.asked = []
        server.announces = lambda: steps(1) >= 20
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = [TRAINCTL, "run", JOB, *PLAIN.split(), "launch.ranks=2", "train.checkpoint=auto", f"launch.log_dir={logs}"]
        ended = subprocess.run([*words, "train.steps=1000000", "train.epochs=1000000", f"launch.spot_notices={cloud}",
                                f"launch.spot_address=127.0.0.1:{server.server_address[1]}"], capture_output=True, text=True, timeout=600, check=False)
        server.shutdown()
        said = ended.stdout + ended.stderr
        require(ended.returncode == REQUEUE, f"exit {ended.returncode}: {said[-2000:]}")
        require(f"{cloud} will reclaim this host ({announced})" in said, said[-2000:])
        stopped = steps(1)
        resumed = subprocess.run([*words, "--resume", f"train.steps={stopped + 3}", "train.epochs=1000000"], capture_output=True, text=True, timeout=600,
                                 check=False)
        require(resumed.returncode == 0, resumed.stdout + resumed.stderr)
        found = judge.losses(logs / "2")
        require(sorted(found) == [stopped + 1, stopped + 2, stopped + 3], sorted(found))
        return f"{cloud}: stopped after step {stopped}, asked {len(server.asked)} times"


def silent():
    """A service that does not answer is reported once, and the run continues."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([TRAINCTL, "run", JOB, *PLAIN.split(), "launch.ranks=1", "train.steps=30", f"launch.log_dir={folder}/logs",
                               "launch.spot_notices=gcp", "launch.spot_address=127.0.0.1:1"], capture_output=True, text=True, timeout=600, check=False)
        said = done.stdout + done.stderr
        require(done.returncode == 0 and said.count("does not answer; spot notices cannot be received") == 1, said[-2000:])
        return "a service that does not answer ends no run"


def main():
    print(notice("aws", "terminate at 2026-11-29T17:02:00Z"), flush=True)
    print(notice("gcp", "preempted"), flush=True)
    print(notice("azure", "Preempt not before Mon, 19 Sep 2026 18:29:47 GMT"), flush=True)
    print(silent(), flush=True)


main()
