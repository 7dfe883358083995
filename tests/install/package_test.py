"""The packages of `./bootstrap package` have all that they promise, and run on a bare system.

    package_test.py PACKAGES [--system DIR]...

PACKAGES: the folder with one .deb and one .tar.gz, or a build directory, of which cpack makes them. Without --system both are unpacked, and the program of each runs a job
from there. DIR is a system that debootstrap has made (as root): the commands of docs/installing.md below its comment on this
test, and then those of the first page, docs/index.md, run in it literally, with nothing installed beside it and no network.
DIR stays as it was: the commands see a copy.
"""
import argparse, pathlib, re, shutil, subprocess, sys, tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests/docs"))
import pages
PARTS = ["bin/trainctl", "share/man/man1/trainctl.1.gz", "share/man/man1/trainctl-bench-op.1.gz",
         "share/bash-completion/completions/trainctl", "share/fish/vendor_completions.d/trainctl.fish",
         "share/trainctl/configs/cookbook/mlp.yaml", "share/trainctl/docs/index.md", "share/doc/trainctl/LICENSE",
         "include/trainctl_plugin.h", "share/trainctl/examples/plugin/snake.c"]


def only(folder, pattern):
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{folder} has {len(found)} files {pattern}, expected 1"
    return found[0].resolve()


def output(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def look_at(tree, zsh):
    """Checks that a tree has its parts and licenses, and no library that other programs would find. Returns the newest glibc that it needs."""
    for part in [*PARTS, zsh]:
        assert (tree / part).is_file(), f"{tree} lacks {part}"
    plans = [str(p) for p in (tree / "share").rglob("*.plan")]
    assert not plans, f"{plans} are for those who change trainctl"
    outside = [str(p) for p in (tree / "lib").iterdir() if p.name != "trainctl"]
    assert not outside, f"{outside} would be found by every program"
    libraries = [p.name for p in (tree / "lib/trainctl").iterdir()]
    assert any(name.startswith("libdnnl") for name in libraries), f"lib/trainctl has {libraries}"
    assert not [n for n in libraries if n.startswith(("libc.so", "ld-linux"))], "the C library is the system's"
    assert len(list((tree / "share/doc/trainctl/licenses").iterdir())) > 5, "licences of the libraries"
    files = [tree / "bin/trainctl", *(tree / "lib/trainctl").iterdir()]
    needed = {v for file in files for v in re.findall(r"GLIBC_([0-9.]+)", output("objdump", "-T", file))}
    return max(needed, key=lambda version: [int(n) for n in version.split(".")])


def run_unpacked(tree, scratch):
    said = output(tree / "bin/trainctl", "run", tree / "share/trainctl/configs/cookbook/mlp.yaml", "train.steps=10",
                  f"launch.log_dir={scratch}/logs", env={"PATH": "/usr/bin:/bin", "HOME": str(scratch)})
    assert "step: 10, loss is" in said, said


def commands():
    """(command, expected exit code)"""
    page = (SOURCE / "docs/installing.md").read_text()
    part = re.search(r"<!-- the package test .*?-->(.*?)\*\*The C library", page, re.S)[1]
    installing = [line for block in re.findall(r"```sh\n(.*?)```", part, re.S) for line in block.splitlines()]
    first = (SOURCE / "docs/index.md").read_text()
    copying = re.search(r"^cp -r /usr/share/trainctl.*$", first, re.M)[0]
    return [(line, 0) for line in [*installing, copying]] + [(text, code) for _, text, code in pages.commands(first)]


def in_system(system, packages):
    """The commands of the page, in a copy of the system with its own /proc and /dev."""
    with tempfile.TemporaryDirectory(dir=system.parent) as scratch:
        root = pathlib.Path(scratch) / "root"
        output("cp", "-a", "--reflink=auto", system, root)
        for package in packages:
            shutil.copy(package, root / "root")
        lines = ["set -e", "mount -t proc proc /proc", "mount -t tmpfs tmpfs /tmp", "mount -t tmpfs tmpfs /dev/shm 2>/dev/null || true",
                 "cd /root", *[f"code=0; {text} || code=$?; [ $code = {code} ]" for text, code in commands()]]
        said = output("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "chroot", root, "/usr/bin/env", "-i",
                      "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "bash", "-c", "\n".join(lines))
        name = re.search(r'PRETTY_NAME="(.*)"', (system / "etc/os-release").read_text())[1]
        losses = len(re.findall(r"step: \d+, loss is", said))
        assert losses > 20, said
        print(f"{name}: {len(commands())} commands of docs/installing.md and docs/index.md; {losses} losses")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("packages", type=pathlib.Path)
    options.add_argument("--system", type=pathlib.Path, action="append", default=[])
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        packages = given.packages
        if (packages / "CPackConfig.cmake").exists():
            packages = scratch / "packages"
            output("cpack", "-B", packages, cwd=given.packages)
        deb, tar = only(packages, "*.deb"), only(packages, "*.tar.gz")
        output("dpkg-deb", "-x", deb, scratch / "deb")
        output("tar", "-xf", tar, "-C", scratch)
        newest = look_at(scratch / "deb/usr", "share/zsh/vendor-completions/_trainctl")
        unpacked = scratch / tar.name.removesuffix(".tar.gz")
        look_at(unpacked, "share/zsh/site-functions/_trainctl")
        wanted = re.search(r"libc6 \(>= ([0-9.]+)\)", output("dpkg-deb", "-f", deb, "Depends"))[1]
        assert [int(n) for n in newest.split(".")] <= [int(n) for n in wanted.split(".")], f"needs GLIBC_{newest}, says {wanted}"
        if shutil.which("lintian"):
            said = output("lintian", "--allow-root", "--tag-display-limit", "0", "--fail-on", "error,warning", deb)
            print("lintian: " + (said.strip() or "nothing to say"))
        else:
            print("lintian: left out, it is not installed")
        for tree in [scratch / "deb/usr", unpacked]:
            run_unpacked(tree, scratch)
        print(f"{deb.name}, {tar.name}: complete; the program needs glibc {newest}, the package asks for {wanted}")
        for system in given.system:
            in_system(system.resolve(), [deb, tar])


main()
