"""The commands of the documentation: lines `$ ...` of ```console blocks in README.md and docs/*.md. A line that ends
in a backslash continues on the next one; `# exits N` at the end states the expected exit code."""


def pages(source):
    return [source / "README.md", *sorted((source / "docs").glob("*.md"))]


def commands(text):
    """Yields (number of the first line, command, expected exit code) in the order of the page."""
    inside, begun = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside, begun = line.strip() == "```console" and not inside, None
        elif inside and (begun or line.startswith("$ ")):
            first, said = begun or (number, "")
            said += line if begun else line[2:]
            if said.endswith("\\"):
                begun = first, said + "\n"
                continue
            begun = None
            command, _, code = said.partition("# exits ")
            yield first, command.strip(), int(code) if code.strip() else 0
