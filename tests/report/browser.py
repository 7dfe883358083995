"""A headless Chromium, and what a page has become in it."""
import html.parser, json, pathlib, shutil, struct, subprocess, tempfile, zlib

# Runs after the page's own script. What it finds out is in the attribute data-probe of <html>.
PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const found = {drawn: performance.now()}, root = document.documentElement;
  %s
  found.wide = root.scrollWidth - innerWidth;
  root.dataset.probe = JSON.stringify(found);
}, 300));
</script></body>"""

VOID = {"meta", "link", "br", "input", "img", "hr", "base"}


def find():
    return next((path for name in ["chromium", "chromium-browser", "google-chrome"] if (path := shutil.which(name))), None)


class Node:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children, self.words = tag, attributes, parent, [], []

    def walk(self):
        yield self
        for child in self.children:
            yield from child.walk()

    def text(self):
        return "".join(part if isinstance(part, str) else part.text() for part in self.words)

    def all(self, tag=None, **attributes):
        names = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [n for n in self.walk() if (tag is None or n.tag == tag)
                and all(n.attributes.get(k) is not None if v is True else n.attributes.get(k) == v for k, v in names.items())]


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = self.open = Node("#document", {}, None)

    def handle_starttag(self, tag, attributes):
        node = Node(tag, dict(attributes), self.open)
        self.open.children.append(node)
        self.open.words.append(node)
        if tag not in VOID:
            self.open = node

    def handle_startendtag(self, tag, attributes):
        node = Node(tag, dict(attributes), self.open)
        self.open.children.append(node)
        self.open.words.append(node)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        node = self.open
        while node.tag != tag and node.parent:
            node = node.parent
        self.open = node.parent or self.root

    def handle_data(self, data):
        self.open.words.append(data)


def chromium(page, arguments, width=1200, height=1400):
    """`page`: a path or a URL. What it printed, and the lines of the page's console."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run([find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
                               f"--user-data-dir={profile}", f"--window-size={width},{height}", "--virtual-time-budget=4000",
                               *arguments, page if isinstance(page, str) else page.as_uri()], capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]
    return done.stdout, said


def with_probe(page, script):
    text = page.read_text()
    copy = page.with_suffix(".probe.html")
    assert text.count("</body>") == 1
    copy.write_text(text.replace("</body>", PROBE % script))
    return copy


def opened(page, script="", width=1200):
    """The drawn page's nodes, what `script` has put into `found`, and the lines of the console."""
    dom, said = chromium(with_probe(page, script), ["--dump-dom"], width)
    reader = Reader()
    reader.feed(dom)
    root = reader.root.all("html")[0]
    return root, json.loads(root.attributes.get("data-probe") or "{}"), said


def picture(page, script="", width=1200, height=1400):
    """Its pixels: rows of (red, green, blue)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.png"
        chromium(with_probe(page, script), [f"--screenshot={path}"], width, height)
        return pixels(path.read_bytes())


def pixels(png):
    """Of an 8-bit RGB or RGBA PNG without interlacing, as Chromium writes it."""
    at, packed, width, channels = 8, b"", 0, 0
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
            assert depth == 8
        packed += body if kind == b"IDAT" else b""
        at += size + 12
    raw, stride, rows = zlib.decompress(packed), width * channels, []
    above = bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        row = bytearray(raw[start + 1:start + 1 + stride])
        unfilter(raw[start], row, above, channels)
        rows.append([tuple(row[i:i + 3]) for i in range(0, stride, channels)])
        above = row
    return rows


def unfilter(kind, row, above, step):
    for i in range(len(row)):
        left = row[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + above[i]) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            row[i] = (row[i] + min((left, above[i], corner), key=lambda c: abs(guess - c))) & 255
