"""Applies the worked examples of docs/ops.md to a copy of the sources, compiles the added files, and runs the tests that
walk all_ops.def with them.

    ops_page.py SOURCE BUILD

A line "`path`, a new file:" or "`path`, after `text`:" states where the code block below it goes; the text must be on
exactly one line. Only the new files and the files that read all_ops.def are compiled, with the commands that
BUILD has for similar files; the rest of each test program comes from BUILD. The rows run on the emulated GPU too, if BUILD has one.
"""
import concurrent.futures, json, os, pathlib, re, shlex, shutil, subprocess, sys, tempfile

ON_CPU = ["test_op_cases", "test_ops_rules", "test_model", "test_compile"]
EMULATED = "test_cuda_emulated"
# The checks of a family's rows on a GPU; the other tests of that program do not use the new families.
ON_GPU = ["a forward CUDA kernel*", "backward CUDA kernels*", "every cut*GPU too", "a CUDA kernel that can accumulate*",
          "an op that may work in place*GPU", "a CUDA kernel run twice*", "every kernel has a CUDA kernel*",
          "kernels that only compiled programs use give on a GPU*"]
ONLY = {"test_compile": ["every optimizer of the list*"], EMULATED: ON_GPU}
OF_FILES = {"test_op_cases": ["*families_test.cpp", "*op_cases_test.cpp", "*kernel_cases_test.cpp"]}  # that walk the list
OF_NEW_FAMILIES = ["test_op_cases", EMULATED]  # run only the rows of the new families; other tests run the others
MODEL = "relu"  # an existing family whose compile commands are used for a new one


def changes(page):
    """Returns (path, anchor or None, code) in the order of the page."""
    pattern = r"`([^`\n]+)`, (?:a new file|after `([^`\n]+)`):\n\n```cpp\n(.*?)^```$"
    return re.findall(pattern, page, re.M | re.S)


def apply(root, path, anchor, code):
    file = root / path
    if not anchor:
        assert not file.exists(), f"{path} exists already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        return
    lines = file.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == anchor]
    assert len(at) == 1, f"docs/ops.md: '{anchor}' is on {len(at)} lines of {path}, expected 1"
    lines.insert(at[0] + 1, code)
    file.write_text("".join(lines))


class Build:
    """The commands of a build directory, redirected to a copy of its sources."""

    def __init__(self, source, build, copy, out):
        self.source, self.build, self.copy, self.out = source, build, copy, out
        self.compiles = [(pathlib.Path(e["file"]), shlex.split(e["command"]))
                         for e in json.loads((build / "compile_commands.json").read_text())]
        self.members = {file: members_of(file, source) for file, _ in self.compiles}

    def has(self, target):
        return subprocess.run(["ninja", "-C", self.build, "-t", "query", f"bin/{target}"], capture_output=True).returncode == 0

    def of_copy(self, word):
        """Returns a word of a command with the paths of the copy; paths of the build directory are unchanged."""
        kept = word.replace(str(self.build), "\0")
        return kept.replace(str(self.source), str(self.copy)).replace("\0", str(self.build))

    def sources(self):
        """Returns all files that the build compiles, alone or as part of a unity file."""
        return sorted({member for members in self.members.values() for member in members})

    def commands(self, path, model):
        """Yields (object of the model, object to make, command) for each way in which the build compiles the model. A file
        that is part of a unity file is replaced by the whole unity file of the copy."""
        for file, command in self.compiles:
            if self.source / model not in self.members[file]:
                continue
            at = command.index("-o") + 1
            made = str(self.out / command[at].replace("/", "-")) if path == model else str(
                self.out / (command[at] + "." + pathlib.Path(path).name + ".o").replace("/", "-"))
            compiled = self.copy / path
            if path == model and self.members[file] != [file]:
                compiled = pathlib.Path(made).with_suffix(file.suffix)
                compiled.write_text(self.of_copy(file.read_text()))
            words = [self.of_copy(w) for w in command]
            words[at] = made
            words[words.index(self.of_copy(str(file)))] = str(compiled)
            yield command[at], made, words

    def link(self, target):
        """Returns the words of the command that links a target, relative to the build directory."""
        shown = subprocess.run(["ninja", "-C", self.build, "-t", "commands", f"bin/{target}"], check=True,
                               capture_output=True, text=True).stdout
        return shlex.split(next(part for part in reversed(shown.splitlines()[-1].split(" && ")) if f"-o bin/{target}" in part))


def members_of(file, source):
    """Returns the sources that a unity file (cmake/unity.cmake) includes, or the file itself if it is not one."""
    if file.parent.suffix != ".unity":
        return [file]
    return [source / name for name in re.findall(r'^#include "(.*)"$', file.read_text(), re.M)]


def target_of(obj):
    return re.search(r"CMakeFiles/(\w+)\.dir/", obj).group(1)


def relink(build, target, made):
    """Links the target with the newly compiled objects. `made`: (source, object of the model, object, whether it replaces
    it). A file that the target compiles itself, as the emulated GPU does with kernels, is not taken from a library."""
    words = build.link(target)
    libraries = {re.sub(r"^lib|\.a$", "", pathlib.Path(w).name) for w in words if w.endswith(".a")}
    objects = []
    compiled = {path for path, model, _, _ in made if model in words}
    for path, model, obj, replaces in made:
        if model in words:
            if replaces:
                words[words.index(model)] = obj
            else:
                objects.append(obj)
        elif path not in compiled and target_of(model) in libraries:  # precedes the library, so that the library's own object is not linked
            objects.append(obj)
    at = words.index("-o")
    words[at + 1] = str(build.out / target)
    words[at + 2:at + 2] = objects
    subprocess.run(words, cwd=build.build, check=True)
    return words[at + 1], objects


def main():
    source, build_dir = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        copy, out = pathlib.Path(scratch) / "copy", pathlib.Path(scratch) / "out"
        out.mkdir()
        build = Build(source, build_dir, copy, out)
        targets = ON_CPU + ([EMULATED] if build.has(EMULATED) else [])
        if EMULATED not in targets:
            print("docs/ops.md: not on the emulated GPU, since this build has no CUDA (nvcc)")
        for top in ["engine", "tests"]:
            shutil.copytree(source / top, copy / top)
        page = (source / "docs/ops.md").read_text()
        found = changes(page)
        assert len(found) >= 10, "docs/ops.md: the worked examples are not where this test looks for them"
        for path, anchor, code in found:
            apply(copy, path, anchor, code)
        new = [path for path, anchor, _ in found if not anchor]
        folders = sorted({pathlib.Path(path).parent.name for path in new})

        # Each new file is compiled like that of the model; files that read or check the list are compiled again.
        jobs, made = [], []
        again = [str(f.relative_to(source)) for f in build.sources() if f.is_relative_to(source) and f.exists()
                 and ('#include "engine/ops/all_ops.def"' in f.read_text() or f.name == "families_test.cpp")]
        models = {path: path for path in again}
        models |= {path: re.sub(pathlib.Path(path).parent.name, MODEL, path) for path in new}
        wanted = {target_of(w) for t in targets for w in build.link(t) if ".dir/" in w}
        wanted |= {pathlib.Path(w).name[3:-2] for t in targets for w in build.link(t) if w.endswith(".a")}
        for path, model in models.items():
            for obj, anew, command in build.commands(path, model):
                if target_of(obj) in wanted and command not in jobs:  # a unity file may have several of them
                    jobs.append(command)
                    made.append((path, obj, anew, path == model))
        missing = [path for path in new if (path.endswith(".cpp") or path.endswith(".cu") and EMULATED in targets) and path not in {each[0] for each in made}]
        assert not missing, f"docs/ops.md: the build directory has no commands for {missing}"
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(subprocess.run, c, cwd=build_dir, check=True) for c in jobs]:
                done.result()
        print(f"docs/ops.md: {len(found)} changes apply, {len(jobs)} files compile", flush=True)

        for target in targets:
            program, _ = relink(build, target, made)
            words = [program]
            environment = dict(os.environ, OMP_NUM_THREADS="1", TRAINCTL_EVERY_NTH="16" if target == EMULATED else "1")
            if target in ONLY:
                words.append("--test-case=" + ",".join(ONLY[target]))
            if target in OF_FILES:
                words.append("--source-file=" + ",".join(OF_FILES[target]))
            if target in OF_NEW_FAMILIES:
                environment["TRAINCTL_OP_CASES"] = ",".join(folders)
            subprocess.run(words, cwd=copy, check=True, env=environment)
        outside = [path for path, anchor, _ in found if anchor and path != "engine/ops/all_ops.def"]
        assert not outside, f"docs/ops.md promises one folder and one line, and changes {outside}"
        print(f"docs/ops.md: {', '.join(folders)}: one folder and one line each, and the tests pass")


main()
