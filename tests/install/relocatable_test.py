"""A moved `cmake --install` tree runs with its own libraries: all except the C library come from its lib/."""
import os, pathlib, subprocess, sys, tempfile

build = pathlib.Path(sys.argv[1])
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    subprocess.run(["cmake", "--install", build, "--prefix", scratch / "first", "--strip"], check=True, stdout=subprocess.DEVNULL)
    (scratch / "first").rename(scratch / "moved")
    trainctl = scratch / "moved/bin/trainctl"
    listed = subprocess.run(["ldd", trainctl], check=True, capture_output=True, text=True).stdout
    outside = [line.split()[2] for line in listed.splitlines()
               if "=> /" in line and not line.split()[2].startswith(str(scratch))]
    system = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so")
    foreign = [path for path in outside if not pathlib.Path(path).name.startswith(system)]
    if foreign or "not found" in listed:
        sys.exit(f"not from the tree: {foreign}\n{listed}")
    job = scratch / "moved/share/trainctl/configs/mnist_mlp.yaml"
    run = subprocess.run([trainctl, "run", job, "train.steps=1", f"launch.log_dir={scratch}/logs"], capture_output=True, text=True,
                         env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    if run.returncode != 0 or "epoch: 1 step: 1, loss is" not in run.stdout:
        sys.exit(f"the moved binary exited with {run.returncode}\n{run.stdout}{run.stderr}")
