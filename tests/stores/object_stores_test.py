"""Jobs that read from an S3 store draw the same samples as from files, although requests fail, take long, or the store restarts.

    object_stores_test.py TRAINCTL

A moto server, which verifies signatures, holds shards, texts, tokens and a table. Between it and trainctl is a proxy that delays each response by 200 ms (40 ms in
the short form), lets 5 % of the requests fail (status 503, a lost connection, half a body), and goes away for some seconds in the middle
of a run. `--long` has more data, all of the delay and a longer absence. Skipped without the package moto[server,s3].
"""
import http.client
import http.server
import importlib.metadata
import io
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request

SIGNED = "X-Amz-Signature=0123456789abcdef"
LONG = "--long" in sys.argv
DELAY, AWAY = (0.2, 8.0) if LONG else (0.04, 2.0)
OLDEST_MOTO = (5, 2, 5)
ROWS = 4000 if LONG else 400


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """Forwards requests to the store, and injects what real networks do."""

    def __init__(self, upstream, folder):
        self.upstream, self.folder, self.port = upstream, folder, free_port()
        self.requests = self.failures = self.bytes = 0
        self.faults, self.away = True, False
        self.random = random.Random(5)
        self.lock = threading.Lock()
        self.start()

    def start(self):
        proxy, self.away = self, False

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                if proxy.away:  # a connection from before
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                with proxy.lock:
                    proxy.requests += 1
                    fault = proxy.random.random() if proxy.faults else 1
                    proxy.failures += fault < 0.05
                time.sleep(DELAY if proxy.faults else 0)
                if self.path.startswith("/web/"):
                    return self.send_file()
                if fault < 0.02:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault < 0.035:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                link = http.client.HTTPConnection("127.0.0.1", proxy.upstream)
                link.request("GET", self.path, headers={k: v for k, v in self.headers.items()})
                response = link.getresponse()
                body = response.read()
                link.close()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if fault < 0.05:
                    self.wfile.write(body[:len(body) // 2])
                    self.close_connection = True
                    return
                self.wfile.write(body)
                with proxy.lock:
                    proxy.bytes += len(body)

            def send_file(self):
                """A plain web server with signed addresses: moto itself does not verify those."""
                name, _, query = self.path[len("/web/"):].partition("?")
                path = proxy.folder / "files" / name
                status = 403 if query != SIGNED else 200 if path.exists() else 404
                content = path.read_bytes() if status == 200 else b""
                self.send_response(206 if status == 200 else status)
                if status == 200:
                    begin, end = (int(part) for part in self.headers["Range"][len("bytes="):].split("-"))
                    self.send_header("Content-Range", f"bytes {begin}-{min(end, len(content) - 1)}/{len(content)}")
                    content = content[begin:end + 1]
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(http.server.ThreadingHTTPServer):
            allow_reuse_address, daemon_threads = True, True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.away = True
        self.server.shutdown()
        self.server.server_close()


class Scene:
    def __init__(self, program, folder, proxy, keys):
        self.program, self.folder, self.proxy = program, folder, proxy
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=str(folder), XDG_CACHE_HOME=str(folder / "cache"), OMP_NUM_THREADS="1", HOME=str(folder),
                                AWS_ACCESS_KEY_ID=keys["AccessKeyId"], AWS_SECRET_ACCESS_KEY=keys["SecretAccessKey"],
                                AWS_ENDPOINT_URL=f"http://127.0.0.1:{proxy.port}", AWS_REGION="us-east-1")
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
            self.environment.pop(name, None)
        self.text = ""

    def run(self, *words, code=0, environment=None):
        done = subprocess.run([self.program, *words], cwd=self.folder, env=environment or self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.text += done.stdout + done.stderr
        if done.returncode != code:
            raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def losses(self):
        runs = [int(name.name) for name in (self.folder / "log_output").iterdir() if name.name.isdigit()]
        lines = (self.folder / "log_output" / str(max(runs)) / "metrics.jsonl").read_text().splitlines()
        return [(row["step"], row["loss"]) for row in map(json.loads, lines) if "loss" in row and "step" in row]


def client(port, name="s3", keys=None):
    import boto3
    import botocore.config
    keys = keys or {"AccessKeyId": "administrator", "SecretAccessKey": "unchecked"}
    return boto3.client(name, endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id=keys["AccessKeyId"],
                        aws_secret_access_key=keys["SecretAccessKey"],
                        config=botocore.config.Config(signature_version="s3v4" if name == "s3" else "v4", s3={"addressing_style": "path"}))


def make_keys(port):
    """The store verifies all signatures once a user with keys exists."""
    iam = client(port, "iam")
    iam.create_user(UserName="trainer")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=json.dumps(policy))
    return iam.create_access_key(UserName="trainer")["AccessKey"]


def write_files(folder):
    """The data of all types, and which keys they have in the bucket."""
    draw = random.Random(1)
    files = {}
    (folder / "files").mkdir()
    for shard in range(3):
        path = folder / "files" / f"shard-{shard}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(ROWS // 3):
                values = bytes(draw.randrange(256) for _ in range(64))
                header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (64,), }".ljust(117) + b"\n"
                array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values
                for suffix, content in [("npy", array), ("cls", str(draw.randrange(4)).encode())]:
                    info = tarfile.TarInfo(f"{shard:02}{i:05}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    for part in range(2):
        lines = (json.dumps({"text": " ".join(draw.choice(words) for _ in range(draw.randrange(3, 40)))}) for _ in range(ROWS // 2))
        (folder / "files" / f"texts {part}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "files" / "tokens.bin").write_bytes(b"".join(draw.randrange(300).to_bytes(2, "little") for _ in range(ROWS * 40)))
    rows = "".join(f"{draw.random():.4f},{draw.random():.4f},{draw.random():.4f}\n" for _ in range(ROWS))
    (folder / "files" / "table.csv").write_text("a,b,y\n" + rows)
    for path in sorted((folder / "files").iterdir()):
        files["set/" + path.name] = path
    return files


JOBS = {
    "tar": ("{type: tar, path: %s/shard-*.tar, fields: {data: npy, label: cls}, batch: 8, transforms: [to_float]}",
            "[{type: flatten, inputs: [data]}, {name: out, type: dense, units: 4}]", "softmax_cross_entropy"),
    "text": ("{type: text, path: '%s/texts*.jsonl', tokenizer: tok, length: 32, batch: 8, pack: true}",
             "[{type: embedding, vocab: 400, units: 8, inputs: [data]}, {name: attn_in, type: dense, units: 24}, "
             "{name: attn, type: attention, heads: 2, causal: true, mask: documents, inputs: [attn_in, documents]}, {name: out, type: dense, units: 400}]",
             "{type: softmax_cross_entropy, ignore_index: -100}"),
    "tokens": ("{type: tokens, path: %s/tokens.bin, length: 32, batch: 8}",
               "[{type: embedding, vocab: 400, units: 8}, {name: out, type: dense, units: 400}]", "softmax_cross_entropy"),
    **{f"table {name}": (f"{{type: table, path: '%s/{path}', fields: {{data: [a, b], label: y}}, label_dtype: f32, batch: 8}}",
                         "[{type: dense, units: 4, inputs: [data]}, {name: out, type: dense, units: 1}]", "mse")
       for name, path in {"hdf5": "table.h5", "mds": "mds", "mds of one": "mds/index.json", "tfrecord": "table.tfrecord", "json lines": "table.jsonl.gz",
                          "parquet": "table-*.parquet", "hugging face": "hf"}.items()},
    "csv": ("{type: csv, path: %s/table.csv, fields: {data: [a, b], label: y}, label_dtype: f32, batch: 8}",
            "[{type: dense, units: 4, inputs: [data]}, {name: out, type: dense, units: 1}]", "mse"),
}


def write_tables(scene, files):
    """The rows of the csv file in the other formats. Those of Arrow are left out where its library is missing."""
    folder = scene.folder
    for name in ["table.h5", "mds/index.json", "table.tfrecord", "table.jsonl.gz", "table-0.parquet", "hf/state.json"]:
        done = subprocess.run([scene.program, "data", "convert", "files/table.csv", "-o", f"files/{name}"], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            assert "TRAINCTL_ARROW" in done.stderr, done.stderr
            for job in ["table parquet", "table hugging face"]:
                JOBS.pop(job, None)
            print("left out: Parquet and Arrow, whose library is missing")
    for path in (folder / "files").rglob("*"):
        if path.is_file():
            files["set/" + str(path.relative_to(folder / "files"))] = path


def write_job(folder, name, root, steps):
    dataset, network, loss = JOBS[name]
    (folder / f"{name}.yaml").write_text(f"seed: 2\ndataset: {dataset % root}\nnetwork: {network}\nloss: {loss}\n"
                                         f"optimizer: {{type: sgd, learning_rate: 0.01}}\ntrain: {{steps: {steps}}}\nlaunch: {{device: cpu, timeout: 60s}}\n")


def wait_for(port):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/").read()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("moto does not start")


def cache_bytes(folder):
    return sum(path.stat().st_size for path in (folder / "cache" / "trainctl" / "objects").rglob("*") if path.is_file())


def check_all(program, folder, port):
    keys = make_keys(port)
    store = client(port, keys=keys)
    proxy = Proxy(port, folder)
    scene = Scene(program, folder, proxy, keys)
    files = write_files(folder)
    scene.run("data", "index", *(str(folder / "files" / f"shard-{i}.tar") for i in range(2)))  # the third has no index
    write_tables(scene, files)
    text = "\n".join(json.loads(line)["text"] for line in (folder / "files" / "texts 0.jsonl").read_text().splitlines())
    (folder / "corpus.txt").write_text(text)
    scene.run("data", "train-tokenizer", "corpus.txt", "--vocab", "300", "-o", "tok")
    store.create_bucket(Bucket="data")
    for key, path in files.items():
        store.put_object(Bucket="data", Key=key, Body=path.read_bytes())

    local = {}
    for name in [name for name in JOBS if not name.startswith("table ")]:
        write_job(folder, name, folder / "files", 12)
        scene.run("run", f"{name}.yaml")
        local[name] = scene.losses()
        assert len(local[name]) == 12, local[name]
    for name in JOBS:
        local.setdefault(name, local["csv"])  # the same rows in another format
        write_job(folder, name, "s3://data/set", 12)
        scene.run("run", f"{name}.yaml", "launch.ranks=2", "parallel.mode=data_parallel")
        remote = scene.losses()
        for (step, loss), (_, expected) in zip(remote, local[name]):
            assert abs(loss - expected) <= 1e-5 * abs(expected), f"{name}: step {step}: {loss} from the store, {expected} from files"
        print(f"{name}: two ranks have the losses of files")
    print(f"{proxy.failures} of {proxy.requests} requests failed")
    assert proxy.failures > 0 and proxy.requests > 20

    before = proxy.requests
    scene.run("run", "tokens.yaml")
    assert proxy.requests - before <= 8, f"a second run reads blocks from the cache: {proxy.requests - before} requests"  # sizes, indices of Megatron, retries

    # The store goes away in the middle of a run that fetches all of its data anew.
    subprocess.run(["rm", "-rf", str(folder / "cache" / "trainctl" / "objects")], check=True)
    process = subprocess.Popen([program, "run", "csv.yaml"], cwd=folder, env=scene.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    count = proxy.requests
    while proxy.requests == count and process.poll() is None:
        time.sleep(0.005)
    proxy.stop()
    time.sleep(AWAY)
    proxy.start()
    output = process.communicate()[0]
    scene.text += output
    assert process.returncode == 0, output
    assert scene.losses() == local["csv"], "the same losses after a restart of the store"
    print(f"the store was away for {AWAY:g} s: same losses")

    # A store that stays away ends the run with its address.
    subprocess.run(["rm", "-rf", str(folder / "cache" / "trainctl" / "objects")], check=True)
    proxy.stop()
    output = scene.run("run", "csv.yaml", code=2, environment=dict(scene.environment, TRAINCTL_STORE_PATIENCE="1"))
    assert "s3://data/set/table.csv" in output and "tries" in output, output
    proxy.start()

    # The cache stays within its limit.
    subprocess.run(["rm", "-rf", str(folder / "cache" / "trainctl" / "objects")], check=True)
    for i in range(6):
        store.put_object(Bucket="data", Key=f"big/{i}.bin", Body=(i + 1).to_bytes(2, "little") * (1024 * 1024 + 500))
    (folder / "big.yaml").write_text("seed: 2\ndataset: {type: tokens, path: s3://data/big/*.bin, length: 4096, batch: 8, store_cache: 5MB}\n"
                                     "network: [{type: embedding, vocab: 400, units: 2}, {name: out, type: dense, units: 8}]\n"
                                     "loss: softmax_cross_entropy\ntrain: {steps: 20}\nlaunch: {device: cpu}\n")
    proxy.faults = False
    scene.run("run", "big.yaml")
    used = cache_bytes(folder)
    assert 0 < used <= 5_000_000, f"{used} bytes are cached"
    print(f"the cache of 13 MB of objects has {used:,} bytes; its limit is 5,000,000")

    # Errors name the address, and no message or file has a credential.
    (folder / "none.yaml").write_text((folder / "csv.yaml").read_text().replace("table.csv", "nothing.csv"))
    assert "no object matches 's3://data/set/nothing.csv'" in scene.run("check", "none.yaml", code=2)
    (folder / "none.yaml").write_text((folder / "csv.yaml").read_text().replace("s3://data/set", "s3://no-such-bucket/set"))
    scene.run("check", "none.yaml", code=2)
    (folder / "photos.yaml").write_text("dataset: {type: image_folder, path: s3://data/photos, batch: 2, transforms: [{resize: [8, 8]}]}\n"
                                        "network: [{type: flatten}, {type: dense, units: 2}]\nloss: softmax_cross_entropy\n")
    assert "tar shards" in scene.run("check", "photos.yaml", code=2)
    wrong = dict(scene.environment, AWS_SECRET_ACCESS_KEY="wrong")
    assert "SignatureDoesNotMatch" in scene.run("check", "csv.yaml", code=2, environment=wrong)
    link = f"http://127.0.0.1:{proxy.port}/web/table.csv?{SIGNED}"
    (folder / "signed.yaml").write_text((folder / "csv.yaml").read_text().replace("s3://data/set/table.csv", f"'{link}'"))
    scene.run("run", "signed.yaml", "launch.log_dir=signed_output")
    (folder / "signed.yaml").write_text((folder / "signed.yaml").read_text().replace("table.csv?", "missing.csv?"))
    scene.run("check", "signed.yaml", code=2)
    (folder / "signed.yaml").write_text((folder / "signed.yaml").read_text().replace("missing.csv?", "table.csv?no"))
    assert "status 403" in scene.run("check", "signed.yaml", code=2)
    secrets = [keys["SecretAccessKey"], keys["AccessKeyId"], SIGNED]
    leaks = [line for line in scene.text.splitlines() if any(secret in line for secret in secrets)]
    assert not leaks, f"an output has a credential: {leaks}"
    for path in (folder / "log_output").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets), f"{path} has a credential"
    print("no output and no file of a run has a credential")


def main():
    try:
        import boto3  # noqa: F401
        import moto.server  # noqa: F401
    except ImportError as missing:
        print(f"SKIPPED: {sys.executable} has no {missing.name}; install moto[server,s3]")
        sys.exit(77)
    version = importlib.metadata.version("moto")
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_MOTO:  # it signed decoded paths in place of those of the request
        print(f"SKIPPED: moto {version} refuses valid signatures; install moto[server,s3] 5.2.5 or newer")
        sys.exit(77)
    program = str(pathlib.Path(sys.argv[1]).resolve())
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=dict(os.environ, INITIAL_NO_AUTH_ACTION_COUNT="3"))
        try:
            wait_for(port)
            check_all(program, pathlib.Path(name), port)
        finally:
            server.kill()
            server.wait()
    print("all checks passed")


if __name__ == "__main__":
    main()
