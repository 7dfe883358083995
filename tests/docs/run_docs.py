"""Runs every command of the documentation, so that no page shows a command that does not work.

A command (pages.py) runs in a scratch folder that contains copies of configs/, examples/ and templates/, and links to docs/ and engine/ for
jobs that read these, with the built trainctl on PATH. It must exit with 0, or with the code that the page states.
`./bootstrap run|trainctl ...` runs the built binary; the other bootstrap commands (which build, install or run this test) are
checked against the list of commands in bootstrap.

    run_docs.py SOURCE TRAINCTL [PAGE...]     such as docs/data.md; all pages if none is named
"""
import os, pathlib, shutil, subprocess, sys, tempfile

from pages import commands, pages

source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
chosen = [source / name for name in sys.argv[3:]] or pages(source)

SHIM = """#!/bin/bash
case "$1" in
  run|trainctl) [ "$1" = trainctl ] && shift; exec trainctl "$@" ;;
  *) grep -qE "^  (${1:-build}|.*[|] *${1:-build}.*)\\)" "%s/bootstrap" ;;
esac
"""


def main():
    failed = ran = 0
    for page in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            for folder in ["configs", "examples", "templates"]:
                shutil.copytree(source / folder, scratch / folder)
            for folder in ["docs", "engine"]:
                (scratch / folder).symlink_to(source / folder)
            (scratch / "bootstrap").write_text(SHIM % source)
            (scratch / "bootstrap").chmod(0o755)
            env = dict(os.environ, PATH=f"{binary.parent}:{os.environ['PATH']}", NO_COLOR="1",
                       XDG_RUNTIME_DIR=str(scratch), XDG_CONFIG_HOME=str(scratch), TMPDIR=str(scratch))  # ps and stop see only the runs of this test
            for number, text, expected in commands(page.read_text()):
                ran += 1
                try:
                    done = subprocess.run(["bash", "-c", text], cwd=scratch, env=env, stdin=subprocess.DEVNULL,
                                          capture_output=True, text=True, timeout=600)
                    code, output = done.returncode, done.stdout + done.stderr
                except subprocess.TimeoutExpired as late:
                    code, output = "timeout", str(late.stdout)
                if code != expected:
                    failed += 1
                    print(f"{page.relative_to(source)}:{number}: `{text}` exited with {code}, expected {expected}\n{output[-3000:]}")
            # A page ends the runs that it starts in the background, unless one of its commands failed.
            subprocess.run([binary, "stop", "--all", "--now"], cwd=scratch, env=env, stdout=subprocess.DEVNULL)
    print(f"{ran} commands of {len(chosen)} pages, {failed} failed")
    sys.exit(1 if failed or ran == 0 else 0)


main()
