"""Every job that the pages for newcomers show can be planned.

    yaml_blocks.py SOURCE TRAINCTL

A ```yaml block with a command is a whole job. Any other block replaces sections of the job that the nearest
`<!-- with: FILE -->` above it names. `trainctl check` and `trainctl plan` must accept the result.
"""
import pathlib, re, shutil, subprocess, sys, tempfile

PAGES = ["docs/from_mindspore.md", "docs/from_torch.md", "docs/how_do_i.md"]
BLOCK = re.compile(r"<!-- with: (\S+) -->|^```yaml\n(.*?)^```$", re.M | re.S)
SECTION = re.compile(r"^(\w+):.*\n(?:[ #].*\n|\n)*", re.M)


def sections(text):
    return {found[1]: found[0] for found in SECTION.finditer(text)}


def jobs(page):
    """Yields (number of the block's first line, FILE, sections of the block) in the order of the page."""
    base = None
    for found in BLOCK.finditer(page):
        if found[1]:
            base = found[1]
        else:
            assert base, "the page has a block of YAML above its first <!-- with: FILE -->"
            yield page.count("\n", 0, found.start()) + 1, base, sections(found[2])


def main():
    source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    tried = failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        shutil.copytree(source / "configs", scratch / "configs")
        (scratch / "docs").symlink_to(source / "docs")
        for name in PAGES:
            for line, base, changed in jobs((source / name).read_text()):
                assert changed, f"{name}:{line}: the block has no section"
                job = scratch / pathlib.Path(base).parent / "block.yaml"
                whole = {**({} if "command" in changed else sections((source / base).read_text())), **changed}
                job.write_text("".join(section.rstrip("\n") + "\n" for section in whole.values()))
                for command in ["check", "plan"]:
                    tried += 1
                    done = subprocess.run([binary, command, job], capture_output=True, text=True)
                    if done.returncode != 0:
                        failed += 1
                        print(f"{name}:{line}: trainctl {command} exited with {done.returncode}\n{done.stderr}{job.read_text()}")
    print(f"{tried} checks and plans of blocks in {len(PAGES)} pages, {failed} failed")
    sys.exit(1 if failed or tried == 0 else 0)


main()
