"""A run that is killed in the middle of an epoch of packed conversations, and resumed, trains each token exactly once.

    packed_resume_test.py TRAINCTL

Runs of one and two ranks are killed with SIGKILL after a checkpoint, and resumed by as many ranks or by others. Each step prints what
the network was given: tokens, labels, and where documents begin. Over the steps that count, up to the checkpoint and after it, each
epoch must have each document once, with the tokens and the trained ones of transformers' apply_chat_template.
"""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "text"), str(ROOT / "campaign")]
import host  # noqa: E402
from chat_templates import CHATML  # noqa: E402

LENGTH, BATCH, EPOCHS, UNTRAINED = 192, 4, 2, -100
PLANS = {1: ["launch.ranks=1"], 2: ["launch.ranks=2", "parallel.mode=data_parallel"]}
JOB = f"""dataset: {{type: chat, path: talks.jsonl, tokenizer: model, length: {LENGTH}, train_on: assistant, pack: true, batch: {BATCH}}}
network:
  - {{name: tokens, type: flatten, inputs: [data]}}
  - {{name: labels, type: flatten, inputs: [label]}}
  - {{name: begins, type: flatten, inputs: [documents]}}
  - {{name: emb, type: embedding, vocab: 400, units: 32, inputs: [data]}}
  - {{name: qkv, type: dense, units: 96}}
  - {{name: turn, type: rotary, heads: 4, packing: heads, inputs: [qkv, documents]}}
  - {{name: attn, type: attention, heads: 4, causal: true, inputs: [turn, documents], mask: documents}}
  - {{name: head, type: dense, units: 400}}
loss: {{type: softmax_cross_entropy, ignore_index: {UNTRAINED}}}
optimizer: {{type: adamw, learning_rate: 0.01}}
print: {{tensors: [tokens, labels, begins], format: npy}}
train: {{epochs: {EPOCHS}, checkpoint: {{every_steps: 3, async: false}}}}
launch: {{device: cpu}}
"""


def talks(count):
    """Conversations of one or two turns; each is the only one with its numbers."""
    rows = []
    for i in range(count):
        messages = []
        for turn in range(i % 2 + 1):
            messages += [{"role": "user", "content": f"Question {i}.{turn}: {'why ' * (i * 5 % 9)}is it so?"},
                         {"role": "assistant", "content": f"Answer {i}.{turn}{' indeed' * (i * 7 % 6)}."}]
        rows.append({"messages": messages})
    return rows


class Scene:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=str(folder), XDG_CACHE_HOME=str(folder / "cache"), OMP_NUM_THREADS="1")

    def run(self, *words, code=0):
        done = subprocess.run([self.program, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != code:
            raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def write_talks(self):
        """Writes enough conversations to fill whole batches, so that no row of an epoch is left out. Returns them and the number of rows."""
        for count in range(90, 60, -1):
            rows = talks(count)
            (self.folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            packed = int(re.search(r"documents in (\d+) rows", self.run("data", "check", "job.yaml")).group(1))
            if packed % BATCH == 0 and packed > 5 * BATCH:
                return rows, packed
        raise SystemExit("no number of conversations fills whole batches")

    def kill_before(self, step, plan):
        """Starts a run, and kills all of its processes once the step before has ended."""
        environment = dict(self.environment, TRAINCTL_TEST_FAULT=f"0:{step + 1}:hang")
        process = subprocess.Popen([self.program, "run", "job.yaml", *plan], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        text, steps = "", 0
        for line in process.stdout:
            text += line
            steps += line.count("loss is") - line.count("mean loss is")
            if steps == step:
                break
        victims = [process.pid, *host.ranks(process.pid).values(), *host.children(process.pid)]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        process.communicate()
        assert steps == step, f"the run ended before step {step}:\n{text}"

    def last_run(self):
        return max(int(name.name) for name in (self.folder / "log_output").iterdir() if name.name.isdigit())

    def printed(self, run, step, name):
        import numpy
        values = numpy.load(self.folder / "log_output" / str(run) / "tensors" / f"step.{step}" / f"{name}.npy")
        return values.reshape(-1, LENGTH).round().astype(int).tolist()

    def documents(self, run, step):
        """The documents that a step trained: their tokens but the last one, and the next tokens, where they are trained."""
        found = []
        for tokens, labels, begins in zip(*(self.printed(run, step, name) for name in ["tokens", "labels", "begins"])):
            for begin in sorted(set(begins)):
                places = [i for i in range(LENGTH) if begins[i] == begin]
                document = tuple((tokens[i], labels[i]) for i in places)
                if any(document_token or label != UNTRAINED for document_token, label in document):
                    found.append(document)  # the rest of a row is token 0, which is not trained
        return found


def expected_documents(folder, rows):
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder / "model"))
    documents = collections.Counter()
    for row in rows:
        out = tokenizer.apply_chat_template(row["messages"], chat_template=CHATML, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        ids, trained = out["input_ids"], out["assistant_masks"]
        assert len(ids) - 1 <= LENGTH, "no conversation is truncated"
        documents[tuple((ids[i], ids[i + 1] if trained[i + 1] else UNTRAINED) for i in range(len(ids) - 1))] += 1
    return documents


def main():
    try:
        import numpy  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        python = ROOT.parent / "build" / "peers" / "bin" / "python3"
        if python.exists() and pathlib.Path(sys.executable) != python:
            sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
        print(f"SKIPPED: {sys.executable} has no {missing.name}; ./bootstrap peers installs it")
        sys.exit(77)
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scene = Scene(program, folder)
        text = "\n".join(m["content"] for row in talks(90) for m in row["messages"])
        (folder / "talks.txt").write_text(text, encoding="utf-8")
        scene.run("data", "train-tokenizer", "talks.txt", "--vocab", "400", "--special", "<|im_end|>", "<|im_start|>", "-o", "model")
        (folder / "model" / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
        (folder / "job.yaml").write_text(JOB)
        rows, packed = scene.write_talks()
        expected, per_epoch = expected_documents(folder, rows), packed // BATCH
        for before, after in [(1, 1), (2, 2), (2, 1), (1, 2)]:
            scene.kill_before(per_epoch // 2 + 1, PLANS[before])
            killed = scene.last_run()
            resumed = scene.run("run", "job.yaml", "--resume", *PLANS[after])
            step = int(re.search(r"resuming after step (\d+)", resumed).group(1))
            assert 0 < step < per_epoch and step % 3 == 0, f"a checkpoint within the epoch, not {step} of {per_epoch}"
            run, epochs = scene.last_run(), collections.defaultdict(collections.Counter)
            for at in range(1, EPOCHS * per_epoch + 1):
                epochs[(at - 1) // per_epoch].update(scene.documents(killed if at <= step else run, at))
            for epoch in range(EPOCHS):
                more, less = epochs[epoch] - expected, expected - epochs[epoch]
                assert not more and not less, f"{before} -> {after} ranks, epoch {epoch + 1}: {sum(more.values())} documents too often, {sum(less.values())} too seldom"
            trained = sum(label != UNTRAINED for document in epochs[0].elements() for _, label in document)
            print(f"{before} -> {after} ranks: resumed after step {step} of {per_epoch}; each epoch has {trained} trained tokens, each once")
    print("all checks passed")


if __name__ == "__main__":
    main()
