"""Runs every command of the documentation, so that no page shows what does not work.

A command is a line `$ ...` of a ```console block in README.md or docs/*.md. It runs in a scratch folder that
holds copies of configs/ and templates/, with the built trainctl on PATH, and must exit with 0, or with N
where the line ends in `# exits N`. `./bootstrap run|trainctl ...` becomes the built binary; the other
bootstrap commands (they build, install or run this very test) are checked against its list of commands.
"""
import os, pathlib, re, shutil, subprocess, sys, tempfile

source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
pages = [source / "README.md", *sorted((source / "docs").glob("*.md"))]

SHIM = """#!/bin/bash
case "$1" in
  run|trainctl) [ "$1" = trainctl ] && shift; exec trainctl "$@" ;;
  *) grep -qE "^  (${1:-build}|.*[|] *${1:-build}.*)\\)" "%s/bootstrap" ;;
esac
"""


def commands(page):
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = line.strip() == "```console" and not inside
        elif inside and line.startswith("$ "):
            text, _, comment = line[2:].partition("# exits ")
            yield number, text.strip(), int(comment) if comment.strip() else 0


def main():
    failed = ran = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            shutil.copytree(source / "configs", scratch / "configs")
            shutil.copytree(source / "templates", scratch / "templates")
            (scratch / "bootstrap").write_text(SHIM % source)
            (scratch / "bootstrap").chmod(0o755)
            env = dict(os.environ, PATH=f"{binary.parent}:{os.environ['PATH']}", NO_COLOR="1",
                       XDG_RUNTIME_DIR=str(scratch), TMPDIR=str(scratch))  # ps and stop see our runs alone
            for number, text, expected in commands(page):
                ran += 1
                try:
                    done = subprocess.run(["bash", "-c", text], cwd=scratch, env=env, stdin=subprocess.DEVNULL,
                                          capture_output=True, text=True, timeout=240)
                    code, output = done.returncode, done.stdout + done.stderr
                except subprocess.TimeoutExpired as late:
                    code, output = "timeout", str(late.stdout)
                if code != expected:
                    failed += 1
                    print(f"{page.relative_to(source)}:{number}: `{text}` exited with {code}, expected {expected}\n{output[-3000:]}")
            # A page ends the runs that it starts in the background, unless one of its commands failed.
            subprocess.run([binary, "stop", "--all", "--now"], cwd=scratch, env=env, stdout=subprocess.DEVNULL)
    print(f"{ran} commands of {len(pages)} pages, {failed} failed")
    sys.exit(1 if failed or ran == 0 else 0)


main()
