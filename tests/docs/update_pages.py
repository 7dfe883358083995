"""Updates the excerpts in the pages: the output of commands, and parts of job files.

    update_pages.py SOURCE TRAINCTL [--check]

`<!-- shown: PARTS -->` marks PARTS of the output of the last command before it, and `<!-- shown: PARTS of FILE -->` marks
PARTS of that job file; `<!-- end -->` is below them. Parts are separated by commas: sections of a plan by their first words
(`head` is the first one, `all` are all that do not depend on the machine), or top-level fields of a job. `layers
(PATTERN)` shows only the rows that match the pattern. With --check the pages are only compared.
"""
import os, pathlib, re, subprocess, sys

from pages import commands, pages

MARK = re.compile(r"(<!-- shown: ([^\n]*?)(?: of (\S+))? -->\n).*?(<!-- end -->)", re.S)
OF_THE_MACHINE = "processes on this host"


def rows(section, pattern):
    """Returns the title, the column heads and the rows that match the pattern; `…` replaces other rows."""
    lines = section.splitlines()
    kept = lines[:2]
    for line in lines[2:]:
        if re.search(pattern, line):
            kept.append(line)
        elif kept[-1].strip() != "…":
            kept.append(" " * (len(line) - len(line.lstrip())) + "…")
    return "\n".join(kept)


def of_plan(plan, parts, where):
    sections = plan.strip("\n").split("\n\n")
    if parts == ["all"]:
        return "\n\n".join(s for s in sections if not s.startswith(OF_THE_MACHINE))
    shown = []
    for part in parts:
        name, _, pattern = part.partition(" (")
        found = sections[:1] if name == "head" else [s for s in sections[1:] if s.startswith(name)]
        assert len(found) == 1, f"{where}: {len(found)} sections begin with '{name}'"
        shown.append(rows(found[0], pattern.removesuffix(")")) if pattern else found[0])
    return "\n\n".join(shown)


def of_job(text, parts, where):
    shown = ""
    for part in parts:
        found = re.search(rf"^{re.escape(part)}:.*\n(?: .*\n|\n)*", text, re.M)
        assert found, f"{where}: the file has no '{part}'"
        shown += found[0]
    return shown.strip("\n")


def fresh(page, text, source, environment):
    def block(mark):
        parts, file = re.split(r", (?![^(]*\))", mark[2]), mark[3]
        where = f"{page.relative_to(source)}: '{mark[1].strip()}'"
        if file:
            return f"{mark[1]}```yaml\n{of_job((source / file).read_text(), parts, where)}\n```\n{mark[4]}"
        above = list(commands(text[:mark.start()]))
        assert above, f"{where}: there is no command above it"
        done = subprocess.run(["bash", "-c", above[-1][1]], cwd=source, env=environment, check=True, capture_output=True, text=True)
        return f"{mark[1]}```text\n{of_plan(done.stdout, parts, where)}\n```\n{mark[4]}"

    return MARK.sub(block, text)


def main():
    source, binary = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    environment = dict(os.environ, PATH=f"{binary.parent}:{os.environ['PATH']}", NO_COLOR="1", COLUMNS="120")
    found, old = 0, []
    for page in pages(source):
        text = page.read_text()
        found += len(MARK.findall(text))
        now = fresh(page, text, source, environment)
        if now != text:
            old.append(str(page.relative_to(source)))
            if "--check" not in sys.argv:
                page.write_text(now)
    assert found, "no page has a mark <!-- shown: ... -->"
    if "--check" in sys.argv and old:
        sys.exit(f"{', '.join(old)}: outdated excerpts; run tests/docs/update_pages.py SOURCE TRAINCTL")
    print(f"{found} excerpts in {len(pages(source))} pages; {'changed: ' + ', '.join(old) if old else 'all up to date'}")


main()
