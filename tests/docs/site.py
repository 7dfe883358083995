"""Checks that docs/ builds as a site without a warning: every page is in the navigation, every link and anchor has its target.

    site.py SOURCE     exits with 77 if mkdocs-material is not installed (./bootstrap docs installs it)

Each page must have a title and be in the search index, and no page may load anything from elsewhere.
"""
import json, os, pathlib, re, subprocess, sys, tempfile

source = pathlib.Path(sys.argv[1]).resolve()
python = source / "build/docs/bin/python3"
environment = dict(os.environ, NO_MKDOCS_2_WARNING="1", NO_COLOR="1")

if not python.exists() or subprocess.run([python, "-c", "import mkdocs, material"], capture_output=True).returncode != 0:
    print("docs/ as a site: skipped, build/docs has no mkdocs-material; ./bootstrap docs installs it")
    sys.exit(77)

with tempfile.TemporaryDirectory() as site:
    done = subprocess.run([python, "-m", "mkdocs", "build", "--strict", "--site-dir", site], cwd=source, env=environment,
                          capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode != 0 or re.search("WARNING|ERROR", said):
        sys.exit(f"mkdocs build --strict exited with {done.returncode}\n{said}")
    found = json.loads((pathlib.Path(site) / "search/search_index.json").read_text())["docs"]
    searched = {entry["location"].partition("#")[0] or "index.html" for entry in found}
    pages = sorted((source / "docs").glob("*.md"))
    for page in pages:
        name = page.with_suffix(".html").name
        html = (pathlib.Path(site) / name).read_text()
        title = re.search(r"^# (.*)", page.read_text(), re.M)[1]
        assert re.search(r"<h1[^>]*>", html), f"{name} has no title, but {page.name} begins with '{title}'"
        assert name in searched, f"{name} is not in the search index"
        elsewhere = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', html)
        assert not elsewhere, f"{name} loads {elsewhere}"
    print(f"{len(pages)} pages, {len(found)} entries of the search index")
