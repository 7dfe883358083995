"""The live view of a run, `trainctl top` and `trainctl attach` in a real terminal (tmux) of 40, 80, 120 and 200 columns.

    terminal_views.py TRAINCTL [--dump FOLDER] [--widths 80,120]

Nothing wraps: what changes is one row, whatever the width. Nothing flickers: the row is not empty between two of its
states. After Ctrl-C the terminal is as before: cursor, echo, screen, modes. --dump writes the screens as text. Exits with
77 where there is no tmux.
"""
import argparse, os, pathlib, pty, re, select, shutil, signal, struct, subprocess, sys, tempfile, termios, time, fcntl

PATIENCE = 600  # seconds after which something hangs
WIDTHS = [40, 80, 120, 200]
JOB = """name: small
dataset: {type: random, shape: [64], label_dtype: f32, samples: 100000, batch: 32, workers: 1, prefetch: 2}
network:
  - {name: fc1, type: dense, units: 512}
  - {name: act1, type: relu}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.001}
train: {epochs: 400, log_every: 1000000}
parallel: {mode: data_parallel}
launch: {ranks: 2, device: cpu}
"""
TOP = re.compile(r"\d+ runs?  load")  # there may be other runs on this host
VIEW = re.compile(r"^(epoch \d|step \d|ranks? \d|loss )")


def eventually(holds, what):
    begin = time.monotonic()
    while not (found := holds()):
        if time.monotonic() - begin > PATIENCE:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.05)
    return found


def registry_in(folder):
    """Words that keep trainctl's list of running runs in this folder: `attach` finds one run, and `stop --all` stops no other test's."""
    return [f"XDG_RUNTIME_DIR={folder}", f"TMPDIR={folder}"]


class Terminal:
    """A shell in a tmux server of its own."""

    def __init__(self, folder, width, trainctl):
        self.width, self.socket = width, f"{folder}/tmux.{width}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", 24, "-c", folder,
                  "env", f"PATH={trainctl.parent}:{os.environ['PATH']}", *registry_in(folder), "PS1=ready> ", "OMP_NUM_THREADS=1", "sh")
        eventually(lambda: self.screen().startswith("ready>"), "a shell starts")

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-u", "-S", self.socket, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def rows(self):
        return self.screen().splitlines()

    def type(self, text):
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def modes(self):
        """The modes of the terminal that programs may leave changed."""
        flags = self.tmux("display-message", "-p", "#{cursor_flag} #{alternate_on} #{insert_flag} #{keypad_flag} #{mouse_any_flag} #{wrap_flag}").strip()
        device = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        return flags, subprocess.run(["stty", "-F", device, "-a"], capture_output=True, text=True, check=True).stdout

    def end(self):
        self.tmux("kill-server")


def watched(terminal, is_enough):
    """Looks at the screen again and again until the rows that it has shown are enough: the row of the view in each look."""
    shown, end = [], time.monotonic() + PATIENCE
    while not is_enough(shown):
        assert time.monotonic() < end, f"the view of {terminal.width} columns never shows all that it should: {shown[-3:]}"
        rows = terminal.rows()
        view = [row for row in rows if VIEW.search(row)]
        assert len(view) == 1, f"one row of {terminal.width} columns changes, not {len(view)}:\n" + "\n".join(rows)
        last = max(i for i, row in enumerate(rows) if row.strip())
        assert rows[last] == view[0], "the view is the last row:\n" + "\n".join(rows)
        assert len(view[0]) < terminal.width, f"{len(view[0])} of {terminal.width} columns: {view[0]}"
        shown.append(view[0])
        time.sleep(0.03)
    return shown


def is_ended(terminal):
    rows = [row for row in terminal.rows() if row.strip()]
    return rows and rows[-1].strip() == "ready>"


def interrupted(terminal, before):
    """Ctrl-C: back to the shell, in a terminal as it was."""
    terminal.tmux("send-keys", "C-c")
    eventually(lambda: is_ended(terminal), lambda: "Ctrl-C ends it:\n" + terminal.screen())
    assert terminal.modes() == before, f"{terminal.modes()} was {before}"
    terminal.type("echo it is $((40 + 2))")
    eventually(lambda: any(row.endswith("it is 42") for row in terminal.rows()), lambda: "the shell echoes and answers:\n" + terminal.screen())


def run(terminal, dump):
    before = terminal.modes()
    terminal.type("trainctl run job.yaml")
    eventually(lambda: re.search(r"step \d+/", terminal.screen()), lambda: "the run begins:\n" + terminal.screen())
    parts = {40: ["step", "loss"], 80: ["step", "loss", "samples/s", "left"], 120: ["epoch", "step", "loss", "samples/s", "left", "per rank"], 200: ["epoch", "step", "loss", "samples/s", "left", "per rank", "ranks 0,1"]}
    patterns = [re.escape(part) for part in parts[terminal.width]] + (["[▁▂▃▄▅▆▇█]{4}"] if terminal.width == 200 else [])
    # It moves, and has all of its parts; memory is read every two seconds.
    shown = watched(terminal, lambda rows: len(set(rows)) > 5 and all(any(re.search(p, row) for row in rows) for p in patterns))
    dump(f"run.{terminal.width}", terminal.screen())
    interrupted(terminal, before)
    dump(f"interrupted.{terminal.width}", terminal.screen())
    assert not any(VIEW.search(row) and "stopped" not in row and "run" not in row for row in terminal.rows()), "the view is gone:\n" + terminal.screen()
    return shown[-1]


def top_and_attach(terminal, dump):
    """Beside a run in the background."""
    terminal.type("clear; trainctl run job.yaml --detach > detached 2>&1; clear")
    eventually(lambda: is_ended(terminal), lambda: "it starts in the background:\n" + terminal.screen())
    before, screen = terminal.modes(), terminal.screen()
    terminal.type("trainctl top --every 0.2")
    eventually(lambda: "training" in terminal.screen() or "run" in terminal.rows()[0], lambda: "top draws:\n" + terminal.screen())
    for _ in range(20):
        rows = terminal.rows()
        assert TOP.match(rows[0]), "top's head is its first row, in each look:\n" + "\n".join(rows)
        assert sum(bool(TOP.match(row)) for row in rows) == 1 and all(len(row) <= terminal.width for row in rows)
    dump(f"top.{terminal.width}", terminal.screen())
    interrupted(terminal, before)
    assert screen.splitlines()[0] in terminal.screen(), "what was on the screen before is there again:\n" + terminal.screen()
    terminal.type("clear; trainctl attach")
    eventually(lambda: re.search(r"step \d+/", terminal.screen()), lambda: "attach shows the run:\n" + terminal.screen())
    watched(terminal, lambda rows: len(set(rows)) > 2)
    dump(f"attach.{terminal.width}", terminal.screen())
    interrupted(terminal, before)
    terminal.type("clear; trainctl stop 1 --log-dir live > /dev/null; trainctl stop --all --now > /dev/null 2>&1; clear")
    eventually(lambda: is_ended(terminal), lambda: "the run is stopped:\n" + terminal.screen())


def flicker(folder, trainctl, width):
    """The output, piece by piece as the terminal gets it: a piece that erases the row draws it again. A terminal that was held up may
    get a piece in two parts, so a quarter of the pieces may end where they erase; if erasing and drawing were two pieces, all would."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm", OMP_NUM_THREADS="1", **dict(word.split("=") for word in registry_in(folder)))
        os.execv(trainctl, ["trainctl", "run", "job.yaml"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    pieces, begin, asked = [], time.monotonic(), False
    while True:
        ready = select.select([terminal], [], [], PATIENCE)[0]
        try:
            piece = os.read(terminal, 1 << 16) if ready else b""
        except OSError:
            piece = b""
        if not piece:
            break
        pieces.append(piece.decode(errors="replace"))
        if not asked and len([p for p in pieces if "step" in p]) > 20:
            os.kill(pid, signal.SIGINT)
            asked = True
    assert asked and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, pieces[-3:]
    erasing = [piece for piece in pieces if "\033[J" in piece]
    # If the last action of a piece is to erase, the row is empty until the next one.
    empty = [piece for piece in erasing if not piece.rsplit("\033[J", 1)[1].strip()]
    assert len(erasing) > 20 and 4 * len(empty) <= len(erasing), (len(erasing), len(empty), empty[:3])
    assert not any(word in "".join(pieces) for word in ["\033[2J", "\033[H", "\033[?25l", "\033[?1049h"]), "a run leaves the screen alone"
    return len(erasing)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the runs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainctl", type=pathlib.Path)
    parser.add_argument("--dump", type=pathlib.Path)
    parser.add_argument("--widths", type=lambda text: [int(width) for width in text.split(",")], default=WIDTHS)
    options = parser.parse_args()
    if not shutil.which("tmux"):
        print("skipped: there is no tmux (apt-get install tmux)")
        return 77

    def dump(name, screen):
        if options.dump:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / f"{name}.txt").write_text(screen.rstrip() + "\n")

    trainctl = options.trainctl.resolve()
    with tempfile.TemporaryDirectory(prefix="views.") as folder:
        pathlib.Path(folder, "job.yaml").write_text(JOB)
        for width in options.widths:
            terminal = Terminal(folder, width, trainctl)
            try:
                print(f"{width:4} columns: {run(terminal, dump)}", flush=True)
                top_and_attach(terminal, dump)
            finally:
                terminal.end()
            print(f"{width:4} columns: {flicker(folder, trainctl, width)} times drawn anew, each time at once", flush=True)
    return 0


sys.exit(main())
