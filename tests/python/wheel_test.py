#!/usr/bin/env python3
"""The wheel has the package and the program, and pip installs both.

    tests/python/wheel_test.py build/release/bin/trainctl"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        print("skipped: this Python has no pip")
        sys.exit(77)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trainctl-wheel-"))
    (folder / "tree/bin").mkdir(parents=True)
    (folder / "tree/lib/trainctl").mkdir(parents=True)
    (folder / "tree/lib/trainctl/libexample.so").write_bytes(b"a library")
    shutil.copy(sys.argv[1], folder / "tree/bin/trainctl")
    wheel = subprocess.run([sys.executable, ROOT / "python/build_wheel.py", folder / "tree", folder], check=True,
                           capture_output=True, text=True).stdout.strip()
    target = folder / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel], check=True)
    assert (target / "trainctl/program/lib/trainctl/libexample.so").read_bytes() == b"a library"
    said = subprocess.run([target / "trainctl/program/bin/trainctl", "--version"], check=True, capture_output=True, text=True).stdout
    assert said.startswith("trainctl "), said
    assert (target / "trainctl/py.typed").exists()
    shutil.rmtree(folder)
    print("the wheel installs the package and the program")


if __name__ == "__main__":
    main()
