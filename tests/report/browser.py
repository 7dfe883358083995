"""A headless Chromium, and the contents of a page after its scripts have run.

One Chromium opens all pages of a test. It is asked over its pipe (DevTools protocol: JSON, each message ended by a zero
byte), so that the test waits for what a page says of itself and not for a time.
"""
import base64, fcntl, html.parser, json, os, select, shutil, struct, subprocess, tempfile, time, zlib

PATIENCE = 600  # seconds after which something hangs

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


def found_by(script):
    """An expression: what `script` puts into `found`."""
    return """(() => {
      const found = {drawn: performance.now()}, root = document.documentElement;
      %s
      found.wide = root.scrollWidth - innerWidth;
      return JSON.stringify(found);
    })()""" % script


class Page:
    """A tab. `said`: the lines of its console, errors that nothing caught, and what could not be loaded."""

    def __init__(self, browser, width, height):
        self.browser, self.said = browser, []
        self.target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ["Runtime", "Log", "Page"]:
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def heard(self, method, parameters):
        if method == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])

    def value(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self):
        """Returns when nothing moves any more: charts are drawn anew when their cards have got their widths."""
        places = "JSON.stringify([...document.querySelectorAll('body *')].map((node) => { const b = node.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }))"
        frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        before = None
        while (now := self.value(places)) != before:
            before = now
            self.ask("Runtime.evaluate", expression=frames, awaitPromise=True)

    def open(self, page):
        """`page`: a path or a URL. Returns when the page says that it is drawn, and its charts have got their widths."""
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        begin = time.monotonic()
        while not self.value("document.documentElement?.dataset.drawn && document.readyState === 'complete'"):
            assert time.monotonic() - begin < PATIENCE, f"{page} is not drawn; the console has {self.said}"
            time.sleep(0.02)
        self.settle()

    def nodes(self):
        reader = Reader()
        reader.feed(self.value("document.documentElement.outerHTML"))
        return reader.root.all("html")[0]

    def picture(self):
        """Its pixels: rows of (red, green, blue). Drawn anew, so after all that was asked before."""
        return pixels(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)
        del self.browser.pages[self.session]


class Browser:
    def __init__(self):
        self.pages, self.number, self.text, self.answers = {}, 0, b"", {}
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.to = os.pipe()
        self.come, theirs_out = os.pipe()
        # Chromium reads from 3 and writes to 4. First beyond both, so that neither overwrites the other.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in [theirs_in, theirs_out]]
        log = open(f"{self.profile.name}/stderr", "wb")
        words = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}/profile", "about:blank"]
        self.process = subprocess.Popen(words, stdout=log, stderr=log, pass_fds=(3, 4), start_new_session=True,
                                        preexec_fn=lambda: [os.dup2(fd, at) for fd, at in zip(high, [3, 4])])
        for fd in [theirs_in, theirs_out, *high]:
            os.close(fd)

    def ask(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while self.number not in self.answers:
            self.listen(end - time.monotonic(), method)
        answer = self.answers.pop(self.number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def listen(self, seconds, method):
        ready = seconds > 0 and select.select([self.come], [], [], seconds)[0]
        more = os.read(self.come, 1 << 20) if ready else b""
        if not more:
            said = open(f"{self.profile.name}/stderr", errors="replace").read()[-2000:]
            raise AssertionError(f"Chromium does not answer {method}: {said}")
        *messages, self.text = (self.text + more).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].heard(message["method"], message["params"])

    def page(self, page, width=1200, height=1400):
        tab = Page(self, width, height)
        tab.open(page)
        return tab

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.come)
        self.profile.cleanup()


def pixels(png):
    """The pixels of an 8-bit RGB or RGBA PNG without interlacing, as Chromium writes it."""
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
