"""Follows the worked example of docs/ops.md in a copy of the repository and compiles what it touches.

    ops_page.py SOURCE COMPILER [--run]

A line "`path`, a new file:" or "`path`, after `text`:" says where the code block below it goes; the text must stand on
exactly one line. --run configures the copy, builds the tests that the page names and runs them (minutes).
"""
import pathlib, re, shutil, subprocess, sys, tempfile

TARGETS = ["test_ops_rules", "test_op_cases", "test_model", "test_spec"]


def changes(page):
    """(path, anchor or None, code) in the page's order."""
    pattern = r"^`([^`\n]+)`, (?:a new file|after `([^`\n]+)`):\n\n```cpp\n(.*?)^```$"
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
    assert len(at) == 1, f"docs/ops.md: '{anchor}' stands on {len(at)} lines of {path}, expected 1"
    lines.insert(at[0] + 1, code)
    file.write_text("".join(lines))


def main():
    source, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) / "copy"
        outside = {"build", ".git", "log_output"}
        skip = lambda folder, names: outside if pathlib.Path(folder) == source else ()
        shutil.copytree(source, root, ignore=skip)
        found = changes((root / "docs/ops.md").read_text())
        assert len(found) > 5, "docs/ops.md: the worked example is not where this test looks for it"
        for path, anchor, code in found:
            apply(root, path, anchor, code)
        touched = sorted({path for path, _, _ in found if path.endswith(".cpp")})
        for path in touched:
            flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
            subprocess.run([compiler, *flags, "-Wno-missing-field-initializers", "-I.", path], cwd=root, check=True)
        print(f"docs/ops.md: {len(found)} changes apply, {len(touched)} files compile")
        if "--run" not in sys.argv:
            return
        subprocess.run(["cmake", "--preset", "release", "-B", "build"], cwd=root, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", "build", "--target", *TARGETS, "-j2"], cwd=root, check=True)
        subprocess.run(["build/bin/test_spec"], cwd=root, env={"TRAINCTL_UPDATE_DOCS": "1"}, stdout=subprocess.DEVNULL)
        for target in TARGETS:
            subprocess.run([f"build/bin/{target}"], cwd=root, check=True)


main()
