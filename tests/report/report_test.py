"""`trainctl report` in a real browser: pages of runs of every kind load without console messages, every figure on a page is
that of the run's files, screenshots show what the page's elements contain, and charts, legends and keys work.

    report_test.py TRAINCTL

TRAINCTL_KEEP_PAGES=FOLDER keeps the pages, and pictures of them.
"""
import json, os, pathlib, shutil, signal, subprocess, sys, tempfile, time, urllib.error, urllib.request

import browser, figures, runs
from runs import BLOCKS, FLAKY, PIPELINE, SMALL

def data_of(root):
    return json.loads(root.all("script", id="data")[0].text())


def check_page(scene, path, runs, sections, width=1200):
    """Opens it, and holds it against the folders of the runs; returns the nodes."""
    tab = scene.browser.page(path, width)
    found, root = json.loads(tab.value(browser.found_by(""))), tab.nodes()
    assert not tab.said, (path.name, tab.said)
    tab.close()
    assert found["wide"] <= 0, f"{path.name} is {found['wide']} pixels too wide for {width}"
    data = data_of(root)
    for run, folder in zip(data["runs"], runs):
        if folder is not None:
            figures.check_sources(run, folder)
    shown = {node.attributes["id"] for node in root.all("section", id=True)}
    assert set(sections) <= shown, (path.name, set(sections) - shown)
    count = figures.check_figures(root, data), figures.check_paths(root, data)
    unnamed = [n for n in root.all("svg") if not n.attributes.get("aria-label") and n.attributes.get("aria-hidden") != "true"]
    assert not unnamed and all(b.text().strip() or b.attributes.get("aria-label") for b in root.all("button")), path.name
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, built in {root.attributes['data-drawn']} ms, {count[0]} figures and {count[1]} curves are those of the files")
    return root


def marks_of(root, title):
    """The names of the marks on a curve, in the order of their steps."""
    chart = next(n for n in root.all("div") if n.attributes.get("class", "").startswith("chart card") and n.all("h3")[0].text() == title)
    marks = [n for n in chart.all("g") if n.attributes.get("class") == "mark"]
    return [n.all("text")[0].text() for n in sorted(marks, key=lambda n: float(n.all("line")[0].attributes["x1"]))]


def stopped_early(scene):
    """A run that train.stop_when ends says so on its curve; a run on a machine whose speed is a guess shows no prediction."""
    run = scene.run(SMALL, "train.stop_when={metric: loss, reaches: 1000000}", "train.checkpoint=null")
    estimate = json.loads((run / "plan.json").read_text()).get("estimate")
    assert estimate is None or estimate["source"].startswith("a guess"), "SMALL names no machine"
    root = check_page(scene, scene.page("stopped_early")[0], [run], ["curves", "events"])
    assert marks_of(root, "loss") == ["stopped early"], marks_of(root, "loss")
    facts = [n.text() for n in root.all("span") if n.attributes.get("class") == "what"]
    assert "step time" in facts and "predicted step time" not in facts and not root.all("section", id="estimate"), facts


def one_rank_and_resumed(scene):
    first = scene.run(SMALL)
    root = check_page(scene, scene.page("one_rank")[0], [first], ["curves", "times", "network", "memory", "events", "machine"])
    assert len(root.all("path", data_from="runs.0.metrics.validations.loss")) == 1
    resumed = scene.run(SMALL, "--resume", "train.epochs=5")
    root = check_page(scene, scene.page("resumed")[0], [resumed], ["curves", "events"])
    events = root.all("section", id="events")[0].text()
    assert "resumed" in events and "checkpoint complete" in events, events
    return first, resumed


def pipeline(scene):
    run = scene.run(PIPELINE, "--profile")
    page, _ = scene.page("pipeline")
    root = check_page(scene, page, [run], ["schedule", "moves", "memory"])
    planned = json.loads((run / "plan.json").read_text())
    ran = json.loads((run / "profile.json").read_text())["tasks"]
    schedule = [n.text() for n in root.all("section", id="schedule")[0].all("title")]
    for stage in planned["tasks"]:
        for task in stage["tasks"]:
            assert sum(t.startswith(f"stage {stage['stage']} {task}: ") for t in schedule) >= 2, (stage["stage"], task)
    sent = [t for t in schedule if t.startswith("send: ")]  # 4 micro-batches, forward and backward, planned and measured
    assert len(sent) == 16 and sum("stage 0 F2 " in t and "to stage 1 F2 " in t for t in sent) == 2, sent
    assert sum("stage 1 B2 " in t and "to stage 0 B2 " in t for t in sent) == 2, sent
    borders = [n.text() for n in root.all("div") if n.attributes.get("class") == "border"]
    assert len(borders) == 1 and "stage 0 → stage 1" in borders[0], borders
    assert "▼ send relu " in borders[0] and "▲ send grad.relu " in borders[0], borders
    assert [sorted(set(r["tasks"])) for r in ran] == [sorted(s["tasks"]) for s in planned["tasks"]]
    moves = root.all("section", id="moves")[0].text()
    assert all(row["kind"] in moves for row in planned["communication"])
    layers = root.all("div", class_=None)
    names = {n.text() for n in layers if n.attributes.get("class") == "name"}
    assert names == {layer["name"] for layer in planned["layers"]}
    return page


def failed_and_restarted(scene):
    run = scene.run(SMALL, "optimizer.learning_rate=1e30", "train.checkpoint=null", ok=(5,))
    root = check_page(scene, scene.page("failed")[0], [run], ["curves"])
    alarm = [n for n in root.all("div") if "alarm" in n.attributes.get("class", "")]
    assert json.loads((run / "error.json").read_text())["report"].strip() in alarm[0].text()
    run = scene.run(FLAKY)
    page, _ = scene.page("restarted")
    root = check_page(scene, page, [run], ["events", "machine"])
    assert "restart after" in root.all("section", id="events")[0].text()
    assert "swordfish" not in page.read_text()


def planned(scene):
    (scene.folder / "blocks.yaml").write_text(BLOCKS)
    page, _ = scene.page("planned", "--plan", "blocks.yaml")
    root = check_page(scene, page, [None], ["network", "schedule", "memory", "moves", "estimate"])
    plan = json.loads(scene.trainctl("plan", "blocks.yaml", "--json"))
    data = data_of(root)["runs"][0]
    assert data["plan"]["rank_classes"] == plan["rank_classes"] and data["plan"]["estimate"] == plan["estimate"]
    rows = [n for n in root.all("div") if n.attributes.get("class") == "layer"]
    assert len(rows) < len(plan["layers"]) / 2
    assert sorted(int(i) for n in rows for i in n.attributes["data-layers"].split()) == list(range(len(plan["layers"])))


def servers(scene):
    run = scene.run(SMALL, "parallel.mode=parameter_server", "parallel.servers=1", "parallel.staleness=2", "launch.ranks=2", "train.checkpoint=null",
                    "validation=null")
    check_page(scene, scene.page("servers")[0], [run], ["curves", "times"])


def long_run(scene, first):
    """Its metrics are written by the test: 100,000 steps with one spike and one nan."""
    run = scene.folder / "long" / "1"
    run.mkdir(parents=True)
    for name in ["job.yaml", "plan.json", "machine.json", "outcome.json"]:
        (run / name).write_text((first / name).read_text())
    with open(run / "metrics.jsonl", "w") as file:
        for n in range(1, 100_001):
            loss = 50.25 if n == 61_803 else round(2 / n ** .3 + .1 * (n * 7919 % 100) / 100, 6)
            said = '"loss":null,"not_finite":"nan"' if n == 70_001 else f'"loss":{loss}'
            file.write(f'{{"epoch":1,"step":{n},"run_step":{n},{said},"learning_rate":{1e-3 * (1 - n / 1e5):.8g},"seconds":{.001 + .0005 * (n % 13) / 13:.6f}}}\n')
    page, seconds = scene.page("long", run)
    check_page(scene, page, [run], ["curves", "times"])
    assert page.stat().st_size < 2_000_000, page.stat().st_size
    print(f"long.html: 100,000 steps, written in {seconds:.2f} s")
    # A limit on seconds would fail on a busy machine: docs/report.md has what was measured.


def several(scene, first, resumed):
    page, _ = scene.page("several", first, resumed, "3")
    root = check_page(scene, page, [first, resumed, None], ["runs", "differences", "curves", "network"])
    differences = root.all("section", id="differences")[0].text()
    assert "train.epochs" in differences and "launch.log_dir" not in differences
    assert len(root.all("path", data_name="run 2 training")) == 1


def asked(url, **headers):
    """The status and body of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, ""


def eventually(holds, what):
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < browser.PATIENCE, what
        time.sleep(0.1)


def served_step(url):
    """The last step in the served data."""
    return json.loads(asked(url + "data")[1])["runs"][0]["metrics"].get("last", {"run_step": 0})["run_step"]


def followed(scene):
    """A page that is served while its run trains."""
    (scene.folder / "job.yaml").write_text(SMALL)
    scene.trainctl("run", "job.yaml", "dataset.samples=1000000", "train.epochs=1000", "train.log_every=500", "train.checkpoint=null",
                   "validation=null", "launch.log_dir=live", "--detach")
    server = subprocess.Popen([scene.program, "report", "--serve", "--log-dir", "live"], cwd=scene.folder, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:"), url
        eventually(lambda: served_step(url) > 0, "the run has begun")
        first = served_step(url)
        eventually(lambda: served_step(url) > first, f"the run continues after step {first}")
        assert asked(url, Host="evil.example")[0] == 403 and asked(url + "etc/passwd")[0] == 404
        tab = scene.browser.page(url)
        assert len(tab.nodes().all("span", id="live")) == 1 and not tab.said, tab.said
        shown = "Number(document.querySelector('[data-from=\"runs.0.metrics.last.run_step\"]').title.replaceAll(',', ''))"
        first = tab.value(shown)
        eventually(lambda: tab.value(shown) > first, "the page draws what the run has done since")
        tab.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    finally:
        server.kill()
        scene.trainctl("stop", "1", "--log-dir", "live", ok=(0, 130))
    print("served page: follows its run")


KEYS = """
const charts = [...document.querySelectorAll(".chart")], chart = charts[0], plot = () => chart.querySelector("svg");
const key = (k) => plot().dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true}));
const domain = () => JSON.parse(plot().dataset.domain);
found.whole = domain();
plot().focus(); key("ArrowRight"); key("ArrowRight");
found.read = chart.querySelector("[aria-live]").textContent;
key("+"); found.zoomed = domain(); found.reset = !chart.querySelector(".chart-head button").hidden;
key("0"); found.back = domain();
const toggle = chart.querySelector(".legend button"), paths = () => chart.querySelectorAll("path.curve").length;
found.lines = paths(); toggle.click(); found.fewer = paths(); found.pressed = toggle.getAttribute("aria-pressed"); toggle.click();
const box = plot().getBoundingClientRect(), at = (type, part) => plot().dispatchEvent(new PointerEvent(type, {clientX: box.left + box.width * part, clientY: box.top + 50, pointerId: 1, pointerType: "mouse", bubbles: true}));
plot().setPointerCapture = () => {};
at("pointermove", .5); found.tip = chart.querySelector(".tip").hidden ? "" : chart.querySelector(".tip").textContent;
at("pointerdown", .4); at("pointermove", .6); at("pointerup", .6); found.dragged = domain();
document.querySelector("#theme").click(); found.theme = document.documentElement.dataset.theme;
plot().dispatchEvent(new MouseEvent("dblclick", {bubbles: true})); found.doubled = domain();
"""


def hands(scene, page):
    """Keys, pointer, legend and theme. `found` is what the page said after each."""
    tab = scene.browser.page(page)
    found = json.loads(tab.value(browser.found_by(KEYS)))
    assert not tab.said, tab.said
    tab.close()
    assert "step" in found["read"] and "training" in found["read"], found
    assert found["zoomed"] != found["whole"] and found["zoomed"][0] >= found["whole"][0] and found["reset"]
    assert found["back"] == found["whole"] == found["doubled"]
    assert found["fewer"] == found["lines"] - 1 and found["pressed"] == "false"
    assert "training" in found["tip"]
    assert found["whole"][0] < found["dragged"][0] < found["dragged"][1] < found["whole"][1]
    assert found["theme"] in ["dark", "light"]


COLORS = """
// Where an element alone is painted: its middle, and what stands there.
found.spots = [];
const number = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
for (const node of document.querySelectorAll("svg rect, .card, .badge, header, [style*=background]")) {
  const box = node.getBoundingClientRect(), x = Math.floor(box.left + box.width / 2), y = Math.floor(box.top + 1 + (node.matches(".card, header") ? 2 : box.height / 2));
  if (box.width < 6 || box.height < 6 || x < 0 || y < 0 || x >= innerWidth || y >= innerHeight || document.elementFromPoint(x, y) !== node) continue;
  const style = getComputedStyle(node), color = number(node.matches("rect") ? style.fill : style.backgroundColor);
  if (color.length !== 3 || style.opacity !== "1" || style.fillOpacity !== "1") continue;
  found.spots.push([x, y, ...color]);
}
found.paper = number(getComputedStyle(document.body).backgroundColor);
found.ink = number(getComputedStyle(document.body).color);
found.words = [...document.querySelectorAll("h2, h3, .fact b")].map((node) => node.getBoundingClientRect())
    .filter((box) => box.top >= 0 && box.bottom < innerHeight && box.width > 8).map((box) => [box.left, box.top, box.right, box.bottom].map(Math.floor));
"""


def look_at(scene, page, theme, width=900, height=1800):
    """A picture shows what the page's elements say: tiles, cards and badges in their colours, words as ink on paper."""
    tab = scene.browser.page(page, width, height)
    tab.value(f"document.documentElement.dataset.theme = '{theme}'; build(); 0")
    tab.settle()
    found = json.loads(tab.value(browser.found_by(COLORS)))
    rows = tab.picture()
    tab.close()
    assert (len(rows), len(rows[0])) == (height, width)
    off = [spot for spot in found["spots"] if max(abs(a - b) for a, b in zip(rows[spot[1]][spot[0]], spot[2:])) > 8]
    assert len(found["spots"]) >= 3 and len(off) * 20 <= len(found["spots"]), (page.name, theme, len(found["spots"]), off[:3])
    light = sum(found["paper"]) > sum(found["ink"])
    assert light == (theme == "light"), found["paper"]
    assert found["words"], page.name
    for left, top, right, bottom in found["words"]:
        brightness = [sum(pixel) for row in rows[top:bottom] for pixel in row[left:right]]
        assert max(brightness) - min(brightness) > 250, (page.name, theme, "no words", left, top, right, bottom)
    return len(found["spots"])


def looks(scene, pages):
    for page in pages:
        spots = [look_at(scene, page, theme) for theme in ["light", "dark"]]
        check_page(scene, page, [], [], width=390)
        print(f"{page.name}: {spots[0]} and {spots[1]} spots of its pictures have their colours; nothing is cut off at 390 pixels")


def killed_and_restarted(scene):
    """A rank that is lost: the run ends with it, or resumes from its checkpoint."""
    fault = dict(TRAINCTL_TEST_FAULT="2:9:exit3")
    run = scene.run(PIPELINE, "train.epochs=2", ok=(5,), **fault)
    root = check_page(scene, scene.page("killed")[0], [run], ["curves", "network"])
    cause = json.loads((run / "error.json").read_text())["first_cause"]
    assert cause["rank"] == 2 and "rank 2" in [n.text() for n in root.all("div") if "alarm" in n.attributes.get("class", "")][0]
    process, run = scene.start(PIPELINE, "dataset.samples=3200000", "train.epochs=1000", "train.checkpoint={every_steps: 50}", "launch.max_restarts=1")
    eventually(lambda: len(figures.lines_of(run)) > 120, "the run has saved")
    victim = scene.worker(run, 2)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: scene.worker(run, 2) not in (None, victim), "the ranks are started again")
    lines = len(figures.lines_of(run))
    eventually(lambda: len(figures.lines_of(run)) > lines + 60, "the run has saved again")
    process.send_signal(signal.SIGINT)
    assert process.wait(browser.PATIENCE) == 130
    root = check_page(scene, scene.page("restarted_network")[0], [run], ["curves", "events"])
    events = root.all("section", id="events")[0].text()
    assert "restart after" in events and events.count("checkpoint complete") >= 2, events
    assert marks_of(root, "loss") == ["restart", "stopped"], marks_of(root, "loss")


def answered(scene):
    """The validation page: measures, the confusion matrix, and the worst samples as images that the browser decodes."""
    shapes = (runs.source / "configs/shapes.yaml").read_text().replace("path: data/shapes", f"path: {runs.source}/configs/data/shapes")
    run = scene.run(shapes, "train.epochs=1", "launch.ranks=1", "parallel.mode=stand_alone", "optimizer.learning_rate=0.0001")
    evaluation = json.loads(scene.trainctl("evaluate", "job.yaml", "launch.ranks=1", "parallel.mode=stand_alone", "--json"))
    page, _ = scene.page("answered", run)
    section = check_page(scene, page, [run], ["curves", "quality"]).all("section", id="quality")[0]
    matrix = next(n for n in section.all("table") if n.attributes.get("class") == "confusion")
    cells = [[int(cell.text()) for cell in row.all("td")] for row in matrix.all("tr") if row.all("td")]
    assert cells == evaluation["confusion"], (cells, evaluation["confusion"])
    wrong = sum(map(sum, cells)) - sum(cells[i][i] for i in range(len(cells)))
    names = [n.text() for n in section.all("figcaption")]
    assert wrong > 0 and 0 < len(names) <= wrong and all(" → " in name and "%" in name for name in names), (wrong, names)
    tab = scene.browser.page(page)
    sizes = json.loads(tab.value("JSON.stringify([...document.querySelectorAll('#quality img')].map((image) => { image.loading = 'eager'; return [image.naturalWidth, image.naturalHeight]; }))"))
    tab.close()
    assert len(sizes) == len(names) and all(width == height > 0 for width, height in sizes), sizes
    return page


def eight_ranks(scene):
    run = scene.run(PIPELINE, "launch.ranks=8", "dataset.batch=64", "--profile")
    root = check_page(scene, scene.page("eight_ranks")[0], [run], ["schedule", "moves", "memory", "times"])
    profile = json.loads((run / "profile.json").read_text())
    assert len(profile["ranks"]) == 8
    tabs = [n.text() for n in root.all("section", id="memory")[0].all("button") if n.attributes.get("role") == "tab"]
    ranks = []
    for text in tabs:
        for part in text.split("ranks ")[1].split(", "):
            first, _, last = part.partition("-")
            ranks += range(int(first), int(last or first) + 1)
    assert sorted(ranks) == list(range(8)), tabs
    return root


def stopped(scene):
    """A run that is stopped as Ctrl-C does it."""
    process, run = scene.start(SMALL, "dataset.samples=100000", "train.epochs=10000", "train.log_every=100", "train.checkpoint=null", "validation=null")
    eventually(lambda: sum("loss" in line for line in figures.lines_of(run)) > 2, "the run has logged three losses")
    process.send_signal(signal.SIGINT)
    assert process.wait(browser.PATIENCE) == 130
    root = check_page(scene, scene.page("stopped")[0], [run], ["curves", "times"])
    assert [n.text() for n in root.all("span") if "badge" in n.attributes.get("class", "")][0] == "stopped"


def swept(scene):
    (scene.folder / "job.yaml").write_text(SMALL)
    scene.trainctl("sweep", "job.yaml", "optimizer.learning_rate=0.003,0.01,0.03", "train.epochs=2", "--jobs", "2", "--folder", "swept")
    trials = sorted((scene.folder / "swept").glob("trial.*/1"))
    assert len(trials) == 3
    root = check_page(scene, scene.folder / "swept/report.html", [], ["runs", "differences", "curves"])
    by_path = {str(pathlib.Path(run["path"]).resolve()): run for run in data_of(root)["runs"]}
    assert by_path.keys() == {str(trial.resolve()) for trial in trials}
    for trial in trials:
        figures.check_sources(by_path[str(trial.resolve())], trial)


def on_gpu(scene):
    """The files of a run on a GPU, as tests/gpu/scripts/report.sh records them."""
    run = runs.source / "tests/report/gpu_run"
    copy = scene.folder / "gpu" / "1"
    shutil.copytree(run, copy)
    root = check_page(scene, scene.page("gpu", copy)[0], [copy], ["curves", "times", "network", "memory", "machine"])
    assert json.loads((copy / "machine.json").read_text())["gpu_driver"] in root.all("section", id="machine")[0].text()


def on_hosts(scene):
    run, reason = runs.over_hosts(scene)
    if run is None:
        return print(f"hosts: left out: {reason}")
    check_page(scene, scene.page("hosts", run)[0], [run], ["curves", "network", "machine"])


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    if browser.find() is None:
        print("skipped: there is no Chromium (apt-get install chromium)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as scene_browser:
        scene = runs.Scene(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder))
        scene.browser = scene_browser
        first, resumed = one_rank_and_resumed(scene)
        page = pipeline(scene)
        several(scene, first, resumed)
        failed_and_restarted(scene)
        stopped_early(scene)
        killed_and_restarted(scene)
        validated = answered(scene)
        eight_ranks(scene)
        stopped(scene)
        planned(scene)
        servers(scene)
        swept(scene)
        on_gpu(scene)
        on_hosts(scene)
        long_run(scene, first)
        followed(scene)
        hands(scene, scene.folder / "one_rank.html")
        looks(scene, [page, validated, *(scene.folder / f"{name}.html" for name in ["one_rank", "failed", "planned", "several"])])
        if keep := os.environ.get("TRAINCTL_KEEP_PAGES"):
            for path in scene.folder.glob("*.html"):
                (pathlib.Path(keep) / path.name).write_text(path.read_text())


main()
