"""A PyTorch DDP script written for torchrun gives the same numbers, and the exit code that docs/launching.md says,
under `command:` of trainctl. Usage: ddp_test.py TRAINCTL. Exits with 77 if python3 has no PyTorch."""
import os, pathlib, re, subprocess, sys, tempfile

SKIPPED = 77
LIMIT = 600  # seconds; importing torch alone takes long on a machine that is busy

trainctl = str(pathlib.Path(sys.argv[1]).resolve())
script = pathlib.Path(__file__).resolve().parent / "ddp_script.py"

if subprocess.run(["python3", "-c", "import torch.distributed.run, torch.distributed as d; assert d.is_gloo_available()"],
                  capture_output=True).returncode != 0:
    print("skipped: python3 has no PyTorch with Gloo here")
    sys.exit(SKIPPED)


def numbers(output):
    return re.findall(r"^(?:step \d+: loss|checksum) .*$", output, re.MULTILINE)


def run(words, folder):
    """PyTorch 2.15 with Gloo sometimes aborts a process at its end, under torchrun too: then the run is repeated."""
    for _ in range(5):
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT)
        print("$", " ".join(words), "->", done.returncode)
        if "terminate called without an active exception" not in done.stdout + done.stderr:
            break
    return done


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "job.yaml").write_text(f"command: [python3, {script}]\nlaunch: {{ranks: 3}}\n")
    ours = run([trainctl, "run", "job.yaml"], folder)
    theirs = run(["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(script)], folder)
    print(ours.stdout, ours.stderr, sep="\n")
    assert ours.returncode == 0 and theirs.returncode == 0, theirs.stderr
    assert len(numbers(theirs.stdout)) == 6, theirs.stdout
    assert numbers(ours.stdout) == numbers(theirs.stdout), theirs.stdout

    failed = run([trainctl, "run", "job.yaml", "env.FAIL=1"], folder)
    assert failed.returncode == 5, failed.stderr
    cause = failed.stderr[failed.stderr.rindex("rank 1 ("):]  # the other ranks' cries come before it, or not at all
    assert "exited with code 1" in cause and "RuntimeError: out of luck" in cause, failed.stderr
print("same result, same exit codes")
