"""Compares the figures on the page of a report with the files of the run."""
import json, math, pathlib, re


def lines_of(run):
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def grammar():
    """{rule: (fields that must be there, all fields)} of docs/logs.md, and the values that tell rules apart."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/logs.md").read_text()
    block = re.search(r"<!-- grammar -->\n```text\n(.*?)```", page, re.S)[1]
    rules = {}
    for name, body in re.findall(r"^(\w+) +:= \{(.*)\}$", block, re.M):
        body = re.sub(r": (\{.*\}|\[[^\]]*\])", "", re.sub(r"beside\?: \{.*?\}", "", body)) if name != "start_up" else "start_up"
        fields = [field.strip() for field in body.split(",")]
        names = {field.split(":")[0].rstrip("?"): field.split(":")[0].endswith("?") for field in fields}
        kind = re.search(r'kind: "(\w+)"', body)
        rules[name] = (names, kind[1] if kind else None)
    assert len(rules) == 10, rules.keys()
    return rules


def check_grammar(run, metrics=("accuracy",)):
    """Each line of a run's metrics.jsonl follows exactly one rule, and the first is what the page says."""
    rules, lines = grammar(), lines_of(run)
    found = []
    for line in lines:
        fits = [name for name, (fields, kind) in rules.items()
                if line.get("kind") == kind and all(field in line for field, may_lack in fields.items() if not may_lack)
                and all(field in fields or ("METRIC" in fields and field in metrics) or
                        ("mean_METRIC" in fields and field.removeprefix("mean_") in metrics) for field in line)]
        assert len(fits) == 1, (line, fits)
        found.append(fits[0])
    assert not found or "start_up" in found[:1] or "start_up" not in found, found[:2]
    return found


def finite(values):
    return [v for v in values if not isinstance(v, str)]


def value_in(line, name):
    """The value under the page's name for it: a loss that is not finite is "nan", "inf" or "-inf"."""
    return line.get("not_finite", "nan") if line[name] is None else line[name]


def check_curves(curves, lines, key):
    """Each point is a line of the file; the extremes and the ends are there."""
    for name, curve in curves.items():
        points = [(line[key], value_in(line, name)) for line in lines if name in line]
        known = set(points)
        shown = list(zip(curve["steps"], curve["values"]))
        assert len(shown) == len(points) or len(points) > 1600, (name, len(shown), len(points))
        assert all(point in known for point in shown), name
        assert shown[0] == points[0] and shown[-1] == points[-1], name
        numbers = finite(v for _, v in points)
        if numbers:
            assert min(finite(curve["values"])) == min(numbers) and max(finite(curve["values"])) == max(numbers), name
        assert len(shown) <= 2600, (name, len(shown))
    return len(curves)


def check_metrics(metrics, run):
    lines = lines_of(run)
    steps = [line for line in lines if "run_step" in line and "kind" not in line]
    count = check_curves(metrics["curves"], steps, "run_step")
    count += check_curves(metrics["epochs"], [line for line in lines if "epoch_end" in line], "last_step")
    count += check_curves(metrics["validations"], [line for line in lines if line.get("kind") == "validation"], "run_step")
    assert count > 0 or not steps
    seconds = sorted(line["seconds"] for line in steps)
    found = metrics["step_seconds"]
    assert found["count"] == len(seconds)
    if seconds:
        rank = lambda part: seconds[max(1, math.ceil(part * len(seconds))) - 1]
        assert (found["median"], found["p90"], found["p99"], found["least"], found["most"]) == (
            rank(.5), rank(.9), rank(.99), seconds[0], seconds[-1])
        assert math.isclose(found["mean"], sum(seconds) / len(seconds), rel_tol=1e-9)
        assert metrics["last"] == steps[-1]


def check_sources(data, run):
    """The data of a page is what the run's folder says."""
    plan = json.loads((run / "plan.json").read_text())
    plan.pop("calls", None)
    for layer in plan.get("layers", []):
        layer.pop("factors")
    for move in plan.get("redistributions", []):
        move.pop("groups")
    assert data["plan"] == plan
    for part in ["machine", "profile"]:
        path = run / f"{part}.json"
        assert path.exists() == (part in data)
        assert not path.exists() or data[part] == json.loads(path.read_text())
    if (run / "outcome.json").exists():
        outcome = json.loads((run / "outcome.json").read_text())
        for field in ["seconds", "exit_code", "step", "steps", "restarts"]:
            assert data.get(field) == outcome.get(field) or (field in ["step", "steps"] and not outcome.get("step")), field
    if (run / "error.json").exists():
        error = json.loads((run / "error.json").read_text())
        assert data["failure"] == error["report"] and data["cause"] == error["first_cause"]
    check_metrics(data["metrics"], run)
    check_grammar(run)


UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
         "µs": 1e-6, "ms": 1e-3, "s": 1, "%": 0.01}


def read_number(text):
    """The number that a text stands for, and by how much the rounding of its last digit may be off."""
    clock = re.fullmatch(r"(?:(\d+)h)?(\d+)m(?:(\d+)s)?", text)
    if clock:
        h, m, s = (int(part or 0) for part in clock.groups())
        return 3600 * h + 60 * m + s, 60 if clock[1] else 1
    found = re.fullmatch(r"(-?[\d,]*\.?(\d*))(?:e([+-]?\d+))? ?(\S*)", text)
    assert found, text
    power = 10.0 ** int(found[3] or 0) * (UNITS[found[4]] if found[4] else 1)
    return float(found[1].replace(",", "")) * power, 0.5 * 10.0 ** -len(found[2]) * power


def at(data, path):
    for word in path.split("."):
        data = data[int(word)] if isinstance(data, list) else data[word]
    return data


def check_figures(root, data):
    """Every figure on the page is the value at its place in the data, as far as its digits say."""
    figures = root.all(data_how=True)
    for node in figures:
        value, text = at(data, node.attributes["data-from"]), node.text()
        if isinstance(value, str) or node.attributes["data-how"] == "text":
            assert text == str(value), (text, value)
            continue
        shown, rounding = read_number(text)
        # "value" drops zeros at the end: four significant digits.
        slack = max(rounding if node.attributes["data-how"] != "value" else 0, abs(value) * 5.01e-4)
        assert abs(shown - value) <= slack * 1.0001, (node.attributes, text, value)
        title = node.attributes["title"].replace(",", "")  # the value, or a sentence that has it
        assert str(value) in title.split() if " " in title else float(title) == value, node.attributes
    return len(figures)


def check_paths(root, data):
    """Every vertex of every curve lies where its value is on the chart's scale."""
    curves = 0
    for chart in root.all("svg", data_domain=True):
        x0, x1, y0, y1 = json.loads(chart.attributes["data-domain"])
        left, right, top, bottom = json.loads(chart.attributes["data-box"])
        for path in chart.all("path", data_from=True):
            curve = at(data, path.attributes["data-from"])
            vertices = [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attributes["d"])]
            points = [(s, v) for s, v in zip(curve["steps"], curve["values"]) if not isinstance(v, str)]
            assert len(vertices) == len(points), path.attributes["data-from"]
            for (x, y), (step, value) in zip(vertices, points):
                assert abs(x - (left + (step - x0) / (x1 - x0) * (right - left))) < 0.11
                assert abs(y - (bottom - (value - y0) / (y1 - y0) * (bottom - top))) < 0.11
            curves += 1
    return curves
