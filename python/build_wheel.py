#!/usr/bin/env python3
"""Writes a wheel of the Python package with the program and its libraries inside.

    build_wheel.py TREE FOLDER

TREE: what `./bootstrap install` or the .tar.gz of `./bootstrap package` contains (bin/trainctl, lib/trainctl). Prints the path."""
import base64
import hashlib
import pathlib
import stat
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def value_of(text, name):
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith(f"{name} ="))


def main(tree, folder):
    project = (HERE / "pyproject.toml").read_text()
    version = value_of(project, "version")
    wheel = folder / f"trainctl-{version}-py3-none-linux_x86_64.whl"
    info = f"trainctl-{version}.dist-info"
    files = {f"trainctl/{path.name}": path for path in sorted((HERE / "trainctl").iterdir()) if path.is_file()}
    files["trainctl/program/bin/trainctl"] = tree / "bin/trainctl"
    for path in sorted((tree / "lib/trainctl").iterdir()) if (tree / "lib/trainctl").is_dir() else []:
        files[f"trainctl/program/lib/trainctl/{path.name}"] = path
    texts = {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: trainctl\nVersion: {version}\nSummary: {value_of(project, 'description')}\n"
                                 "Requires-Python: >=3.9\nRequires-Dist: numpy\nRequires-Dist: pyyaml\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: trainctl\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"}
    record = []
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
        def add(name, data, is_program):
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if is_program else 0o644)) << 16
            out.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        for name, path in files.items():
            add(name, path.read_bytes(), "/program/" in name)
        for name, text in texts.items():
            add(name, text.encode(), False)
        out.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    print(wheel)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
