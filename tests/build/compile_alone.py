#!/usr/bin/env python3
"""Compiles each changed source and header alone, as the preset dev does. In a unity build a file may use what a neighbour
in its group includes or defines; such a file breaks as soon as the groups change.

    compile_alone.py SOURCE_DIR BUILD_DIR [--since COMMIT] [--at-most N]

Changed files are those whose code differs from COMMIT, by default the last commit that is four hours older than HEAD. With --at-most,
the N files that changed last are compiled, and the output says how many were left for a run without it. A file is left out if it
includes all that it included and uses no name that it did not use, since then it needs no other include; a moved file is compared
with what it was. Sources are only parsed (-fsyntax-only); the device code of CUDA sources is parsed for one architecture. A header whose
source includes it first is checked by compiling that source. Exit status: 0, 1 if a file fails, 77 if skipped.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

HEADER, CUDA = ".h", ".cu"
RECENT_SECONDS = 4 * 3600
# These are included after the names that they use, by one source for each instruction set.
PARAMETRIC = {"engine/ops/matmul/tile_packing.h", "engine/ops/matmul/tiles.h"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)
NAME = re.compile(r"[A-Za-z_]\w*")
# Literals, which may contain what looks like a comment, and comments.
LITERAL_OR_COMMENT = re.compile(
    r'''R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/''', re.S)


def git(source, *words):
    return subprocess.run(["git", "-C", source, *words], capture_output=True, text=True, check=True).stdout.split("\n")


def code_of(text):
    """The included files, and the names outside of comments and literals."""
    included = {os.path.basename(name) for name in INCLUDE.findall(text)}
    rest = LITERAL_OR_COMMENT.sub(" ", INCLUDE.sub("", text))
    return included, set(NAME.findall(rest))


def may_need_includes(source, since, before, path):
    """`before`: its path in that commit."""
    if not path.endswith((HEADER, ".cpp", CUDA)):
        return True
    old = subprocess.run(["git", "-C", source, "show", f"{since}:{before}"], capture_output=True, text=True)
    if old.returncode != 0:
        return True
    old_included, old_names = code_of(old.stdout)
    with open(os.path.join(source, path)) as now:
        included, names = code_of(now.read())
    return not (old_included <= included and names <= old_names)


def newest_first(source, paths):
    """The paths, those that changed last first: in the working tree, then in the newest commit, and so on."""
    order = git(source, "diff", "--name-only", "HEAD") + git(source, "log", "--name-only", "--format=", "-500", "HEAD")
    rank = {}
    for path in order:
        rank.setdefault(path, len(rank))
    return sorted(paths, key=lambda path: (rank.get(path, len(rank)), path))


def changed_files(source, since):
    if not since:
        newest = int(git(source, "log", "-1", "--format=%ct")[0])
        since = git(source, "rev-list", "-1", f"--before={newest - RECENT_SECONDS}", "HEAD")[0]
    if not since:  # a history of a few hours, or a shallow clone
        return git(source, "ls-files")
    rows = [row.split("\t") for row in git(source, "diff", "--name-status", "--diff-filter=d", "-M", "-l0", since) if row]
    return [row[-1] for row in rows if may_need_includes(source, since, row[1], row[-1])]


def commands_of(source, build):
    """The compile command of each source in a build without unity, with its folder."""
    configured = subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                                 "-DTRAINCTL_UNITY=OFF"], capture_output=True, text=True)
    if configured.returncode != 0:
        sys.exit(f"cannot configure a build without unity:\n{configured.stdout}{configured.stderr}")
    commands = {}
    for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
        path = os.path.relpath(entry["file"], source)
        commands[path] = (shlex.split(entry["command"]), entry["directory"])
    return commands


def without_launcher(words):
    """Drops the words before the compiler: `cmake -E env … ccache`."""
    names = [os.path.basename(word) for word in words]
    return words[names.index("ccache") + 1:] if "ccache" in names else words


def without_output(words):
    """Drops the output, the dependency file and the input."""
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in ("-o", "-MF", "-MT", "-c"):
            skip = 1
        elif word not in ("-MD", "-MMD"):
            kept.append(word)
    return kept


def neighbour(path, commands):
    """A source whose flags suit a header: one of the nearest folder that has sources."""
    folder = os.path.dirname(path)
    while folder:
        for source in sorted(commands):
            if source.startswith(folder + "/") and source.endswith(".cpp"):
                return source
        folder = os.path.dirname(folder)
    return None


def checked_by(path, source, commands):
    """The file whose compilation shows that `path` compiles alone: a source of the same name that includes the header first."""
    own = path.removesuffix(HEADER) + ".cpp"
    if not path.endswith(HEADER) or own not in commands:
        return path
    with open(os.path.join(source, own)) as text:
        first = next((line for line in text if line.startswith("#include")), "")
    return own if first.split() == ["#include", f'"{path}"'] else path


def compile_one(path, source, commands):
    full = os.path.join(source, path)
    if path.endswith(HEADER):
        of = neighbour(path, commands)
        if of is None:
            return None
        words, folder = commands[of]
        words = without_output(without_launcher(words)) + ["-fsyntax-only", "-x", "c++", "-"]
        return subprocess.run(words, cwd=folder, input=f'#include "{full}"\n', capture_output=True, text=True)
    words, folder = commands[path]
    words = without_output(without_launcher(words))
    if path.endswith(CUDA):
        words = [w for w in words if not w.startswith(("--generate-code", "-gencode"))]
        words += ["-arch=compute_90a", "-fdevice-syntax-only", "-ptx", full, "-o", os.devnull]
    else:
        words += ["-fsyntax-only", full]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("build")
    parser.add_argument("--since")
    parser.add_argument("--at-most", type=int)
    arguments = parser.parse_args()
    source = os.path.abspath(arguments.source)
    if not os.path.exists(os.path.join(source, ".git")):
        print("SKIPPED: the sources are not a git checkout, so no file counts as changed")
        return 77
    commands = commands_of(source, arguments.build)
    # A source without a command belongs to another build: no_cuda_*.cpp, say, where CUDA is found, or the fuzzers.
    changed = [p for p in changed_files(source, arguments.since) if p in commands or p.endswith(HEADER) and p not in PARAMETRIC]
    changed = list(dict.fromkeys(checked_by(path, source, commands) for path in newest_first(source, changed)))
    later = changed[arguments.at_most:] if arguments.at_most else []
    changed = changed[:len(changed) - len(later)]
    failed = compiled = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path, result in zip(changed, pool.map(lambda p: compile_one(p, source, commands), changed)):
            if result is None:
                continue
            compiled += 1
            if result.returncode != 0:
                failed += 1
                print(f"{path} does not compile alone; include what it uses:\n{result.stderr[:3000]}")
    print(f"{compiled} changed files compiled alone, {failed} failed" + (f"; {len(later)} that changed earlier are left for the soak" if later else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
