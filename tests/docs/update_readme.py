"""Puts the real output of `trainctl plan configs/mnist_mlp.yaml` between the marks of README.md; with --check only
compares, so that the README always shows the binary's output."""
import pathlib, re, subprocess, sys

source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
page = source / "README.md"
plan = subprocess.run([binary, "plan", "configs/mnist_mlp.yaml"], cwd=source, check=True, capture_output=True, text=True).stdout
plan = plan.split("\nprocesses on this host")[0]  # the rest depends on the machine
text = page.read_text()
fresh = re.sub(r"(<!-- plan:begin -->\n).*?(<!-- plan:end -->)", lambda m: f"{m[1]}```text\n{plan}```\n{m[2]}", text, flags=re.S)
if "--check" not in sys.argv:
    page.write_text(fresh)
elif fresh != text:
    sys.exit("README.md shows an old plan; run tests/docs/update_readme.py SOURCE TRAINCTL")
