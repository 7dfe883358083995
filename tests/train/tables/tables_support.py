"""Shared by the tests of tables: runs trainctl, compares rows, and damages files."""
import importlib
import json
import math
import subprocess

SKIPPED = 77
ROWS = 250
# A damaged file may be read, be an error of the file (3) or of the command line (2), but never end the program otherwise.
ALLOWED = {0, 2, 3}


class Missing(Exception):
    pass


def need(*names):
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise Missing(str(error)) from error


class Trainctl:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words, code=0):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=300, check=False)
        if done.returncode != code and "need the library libtrainctl_arrow.so" in done.stderr:
            raise Missing("libtrainctl_arrow.so; ./bootstrap arrow builds it")
        if done.returncode != code:
            raise AssertionError(f"{words}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def convert(self, *inputs, to, columns=None, code=0):
        words = ["data", "convert", *inputs, "-o", to, "--force"]
        return self.run(*words, *(["--columns", ",".join(columns)] if columns else []), code=code)

    def rows(self, *inputs, columns=None):
        to = self.folder / "rows.jsonl"
        self.convert(*inputs, to=to, columns=columns)
        return [json.loads(line) for line in to.read_text().splitlines()]


def close(found, expected):
    if isinstance(expected, float) or isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-12)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(close, found, expected))
    return found == expected


def same(found, expected, what):
    assert len(found) == len(expected), f"{what}: {len(found)} rows, expected {len(expected)}"
    for number, (a, b) in enumerate(zip(found, expected)):
        assert close(a, b), f"{what}: row {number}: {a}, expected {b}"


def damaged(trainctl, path, what):
    """The file, shortened and with changed bytes, never crashes the program."""
    whole = path.read_bytes()
    places = [len(whole) * part // 7 for part in range(7)] + [len(whole) - 1]
    for place in places:
        for changed in [whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1:]]:
            path.write_bytes(changed)
            done = subprocess.run([trainctl.program, "data", "convert", str(path), "-o", str(trainctl.folder / "x.jsonl"), "--force"],
                                  capture_output=True, text=True, errors="replace", timeout=300, check=False)
            assert done.returncode in ALLOWED, f"{what}: damaged at byte {place}: exit code {done.returncode}\n{done.stderr}"
    path.write_bytes(whole)


def python_rows():
    return [{"id": i, "score": i / 7 - 3, "even": i % 2 == 0, "text": f"täxt {i}\n\"quoted\"", "list": [i, i + 1, i + 2],
             "maybe": None if i % 5 == 0 else f"m{i}", "nested": {"a": [i, {"b": None}]}} for i in range(ROWS)]
