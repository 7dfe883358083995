"""A mixture draws the same samples under every plan, and each sample once when a run is killed and resumed in the middle.

    mixes_test.py TRAINCTL

Each row of the three tables has a number of its own, which the run prints. Losses under four plans are those of one rank. Runs are
killed with SIGKILL and resumed by as many ranks or by others: together their steps draw what an undisturbed run draws, which is what
`data mix` shows. A source that joins by mix_schedule continues the run; other shares are refused.
"""
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "campaign")]
import host  # noqa: E402

BATCH, STEPS = 8, 24
SIZES = {"a": 37, "b": 11, "c": 23}
PLANS = {
    "1 rank": ["launch.ranks=1"],
    "2 ranks": ["launch.ranks=2", "parallel.mode=data_parallel"],
    "2 stages": ["launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.stage_config={out: 1}"],
    "4 ranks, whole batches": ["launch.ranks=4", "parallel.mode=data_parallel", "parallel.full_batch=true", "dataset.workers=3"],
}
JOB = """seed: 3
dataset:
  type: mix
  batch: 8
  samples: 80
  sources:
    a: {type: csv, path: a.csv, fields: {data: [id, x], label: y}, label_dtype: f32}
    b: {type: csv, path: b.csv, fields: {data: [id, x], label: y}, label_dtype: f32, max_epochs: 4}
  mix: {a: 0.6, b: 0.4}
  mix_schedule: [{step: 8, mix: {a: 0.5, b: 0.5}, ramp: 4}]
network:
  - {name: rows, type: flatten, inputs: [data]}
  - {name: hidden, type: dense, units: 8}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.001}
print: {tensors: [rows], format: npy}
train: {steps: 24, checkpoint: {every_steps: 3, async: false}}
launch: {device: cpu}
"""


class Scene:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=str(folder), XDG_CACHE_HOME=str(folder / "cache"), OMP_NUM_THREADS="1")

    def run(self, *words, code=0):
        done = subprocess.run([self.program, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != code:
            raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def last_run(self):
        return max(int(name.name) for name in (self.folder / "log_output").iterdir() if name.name.isdigit())

    def losses(self, run):
        rows = [json.loads(line) for line in (self.folder / "log_output" / str(run) / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row["loss"] for row in rows if "loss" in row and "step" in row}

    def drawn(self, run, step):
        """The numbers of the rows of a step, in the order of the batch."""
        path = self.folder / "log_output" / str(run) / "tensors" / f"step.{step}" / "rows.npy"
        data = path.read_bytes()
        assert data[:6] == b"\x93NUMPY", path
        body = data[10 + int.from_bytes(data[8:10], "little"):]
        import array
        values = array.array("f")
        values.frombytes(body)
        return [round(v) for v in values[0::2]]

    def kill_before(self, step, plan):
        environment = dict(self.environment, TRAINCTL_TEST_FAULT=f"0:{step + 1}:hang")
        process = subprocess.Popen([self.program, "run", "job.yaml", *plan], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        text, steps = "", 0
        for line in process.stdout:
            text += line
            steps += line.count("loss is") - line.count("mean loss is")
            if steps == step:
                break
        for pid in [process.pid, *host.ranks(process.pid).values(), *host.children(process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        process.communicate()
        assert steps == step, f"the run ended before step {step}:\n{text}"


def write_tables(folder):
    first = 0
    for name, size in SIZES.items():
        rows = "".join(f"{first + i},{(first + i) * 37 % 101 / 101:.6f},{(first + i) % 7 / 7:.6f}\n" for i in range(size))
        (folder / f"{name}.csv").write_text("id,x,y\n" + rows)
        first += size


def check_sequence(per_step):
    """Each pass over a source has each of its rows once, and the shares are those of the job."""
    first = 0
    for name, size in SIZES.items():
        draws = [number for step in sorted(per_step) for number in per_step[step] if first <= number < first + size]
        for begin in range(0, len(draws), size):
            part = draws[begin:begin + size]
            assert len(set(part)) == len(part), f"{name}: a pass has a row twice: {part}"
        first += size


DOCUMENTS = """seed: 4
dataset:
  type: mix
  batch: 4
  mix_by: tokens
  mix: {a: 0.6, b: 0.4}
  sources:
    a: {type: text, path: texts.jsonl, tokenizer: tok, length: 64, pack: true, packing: in_order, fim: 0.5, curriculum: length, deduplicate: true,
        fim_tokens: [<fim_prefix>, <fim_suffix>, <fim_middle>], filter: "tokens > 1 and lang == 'en'"}
    b: {type: tokens, path: tokens.bin, length: 64}
validation: {every_steps: 6, dataset: {sources: {a: held_out.jsonl}}}
network:
  - {name: emb, type: embedding, vocab: 310, units: 16, inputs: [data]}
  - {name: qkv, type: dense, units: 48}
  - {name: attn, type: attention, heads: 2, causal: true, mask: documents, inputs: [qkv, documents]}
  - {name: out, type: dense, units: 310}
loss: {type: softmax_cross_entropy, ignore_index: -100}
optimizer: {type: sgd, learning_rate: 0.1}
train: {steps: 12}
launch: {device: cpu}
"""


def check_documents(scene, folder):
    """Packed, filtered and rearranged documents together with rows of tokens: the losses of one rank under every plan, and notes on what is left out."""
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    draw = random.Random(3)
    for name, count in [("texts", 60), ("held_out", 20)]:
        texts = [" ".join(draw.choice(words) for _ in range(draw.randrange(2, 50))) for _ in range(count)]
        texts[7] = texts[3]
        rows = (json.dumps({"text": text, "lang": "de" if i % 4 == 0 else "en"}) for i, text in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "corpus.txt").write_text(" ".join(words * 50))
    scene.run("data", "train-tokenizer", "corpus.txt", "--vocab", "300", "--special", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "-o", "tok")
    scene.run("data", "tokens", "texts.jsonl", "--tokenizer", "tok", "-o", "tokens.bin")
    (folder / "documents.yaml").write_text(DOCUMENTS)
    notes = scene.run("check", "documents.yaml")
    for note in ["15 of 60 documents are left out by dataset.filter", "1 of 60 documents is left out by dataset.deduplicate", "rearranged for fill-in-the-middle"]:
        assert note in notes, f"no note '{note}' in\n{notes}"
    expected = {}
    for plan, words_of_plan in PLANS.items():
        if "whole" in plan:
            continue
        scene.run("run", "documents.yaml", *words_of_plan, "parallel.micro_batches=2")
        losses = scene.losses(scene.last_run())
        expected = expected or losses
        assert len(losses) >= 12, losses
        for step, loss in expected.items():
            assert abs(losses[step] - loss) <= 1e-5 * abs(loss), f"{plan}: step {step}: {losses[step]} and not {loss}"
    (folder / "wrong.yaml").write_text(DOCUMENTS.replace("lang ==", "language =="))
    wrong = scene.run("check", "wrong.yaml", code=2)
    assert "wrong.yaml:9" in wrong and "texts.jsonl:1" in wrong and "lang" in wrong, wrong
    print("packed, filtered and rearranged documents have the losses of one rank under every plan")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scene = Scene(program, folder)
        (folder / "job.yaml").write_text(JOB)
        write_tables(folder)
        notes = scene.run("check", "job.yaml")
        assert "mixture: a gives 60.0 % to 50.0 % of the samples" in notes, notes
        table = scene.run("data", "mix", "job.yaml", "-n", str(STEPS), "--samples")
        shown = {step: [] for step in range(1, STEPS + 1)}
        for step, where in re.findall(r"^step (\d+) row \d+: .*?, (.*)$", table, re.M):
            source, line = re.match(r"(\w+): .*:(\d+)", where).groups()
            first = sum(SIZES[s] for s in "abc"[:"abc".index(source)])
            shown[int(step)].append(first + int(line) - 2)

        expected, losses = {}, {}
        for plan, words in PLANS.items():
            scene.run("run", "job.yaml", *words)
            run = scene.last_run()
            draws = {step: scene.drawn(run, step) for step in range(1, STEPS + 1)}
            values = scene.losses(run)
            if not expected:
                expected, losses = draws, values
                check_sequence(expected)
                assert expected == shown, f"data mix shows different samples than a run draws:\n{shown}\n{expected}"
            assert draws == expected, f"{plan}: other samples than one rank"
            for step, loss in losses.items():
                assert abs(values[step] - loss) <= 1e-5 * abs(loss) + 1e-7, f"{plan}: step {step}: {values[step]} and not {loss}"
            print(f"{plan}: {len(draws)} steps draw the samples of one rank and have its losses")

        for before, after in [("1 rank", "2 ranks"), ("2 ranks", "1 rank"), ("2 ranks", "4 ranks, whole batches")]:
            scene.kill_before(11, PLANS[before])
            killed = scene.last_run()
            text = scene.run("run", "job.yaml", "--resume", *PLANS[after])
            step = int(re.search(r"resuming after step (\d+)", text).group(1))
            assert step == 9, text
            run = scene.last_run()
            draws = {at: scene.drawn(killed if at <= step else run, at) for at in range(1, STEPS + 1)}
            assert draws == expected, f"{before} -> {after}: different samples than without the interruption"
            print(f"{before} -> {after}: resumed after step {step} of {STEPS}; each sample is drawn as without the interruption")

        scene.kill_before(11, PLANS["1 rank"])
        killed = scene.last_run()
        job = JOB.replace("  mix: {a: 0.6", "    c: {type: csv, path: c.csv, fields: {data: [id, x], label: y}, label_dtype: f32}\n  mix: {a: 0.6")
        (folder / "job.yaml").write_text(job.replace("mix: {a: 0.6, b: 0.4}", "mix: {a: 0.4, b: 0.3, c: 0.3}"))
        refused = scene.run("run", "job.yaml", "--resume", code=3)
        assert "mix_schedule" in refused, refused
        job = job.replace("ramp: 4}]", "ramp: 0}, {step: 9, mix: {a: 0.4, b: 0.2, c: 0.4}}]").replace("b: 0.5}, ramp: 0", "b: 0.5}, ramp: 1")
        (folder / "job.yaml").write_text(job)
        other = scene.run("run", "job.yaml", "--resume", code=3)
        assert "drawn from" in other, other
        job = job.replace("{step: 8, mix: {a: 0.5, b: 0.5}, ramp: 1}, {step: 9", "{step: 9").replace("{a: 0.6, b: 0.4}", "{a: 0.6, b: 0.4}")
        (folder / "job.yaml").write_text(JOB.replace("{step: 8, mix: {a: 0.5, b: 0.5}, ramp: 4}", "{step: 9, mix: {a: 0.5, b: 0.5}}"))
        scene.kill_before(11, PLANS["1 rank"])
        killed = scene.last_run()
        (folder / "job.yaml").write_text(job)
        text = scene.run("run", "job.yaml", "--resume", *PLANS["2 ranks"])
        step = int(re.search(r"resuming after step (\d+)", text).group(1))
        run = scene.last_run()
        draws = {at: scene.drawn(killed if at <= step else run, at) for at in range(1, STEPS + 1)}
        check_sequence(draws)
        assert any(number >= SIZES["a"] + SIZES["b"] for number in draws[step + 2]), "the new source is drawn"
        print(f"a source that joins by mix_schedule after step {step}: the others continue with their next samples")
        check_documents(scene, folder)
    print("all checks passed")


if __name__ == "__main__":
    main()
