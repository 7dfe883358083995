"""A whole session with chat data: train a tokenizer, check and show conversations, train on them on one to four ranks.

    chat_test.py TRAINCTL

Compares the tokens and the trained ones with transformers' apply_chat_template, where it is installed.
"""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chat_templates import CHATML, FAMILIES  # noqa: E402

JOB = """dataset: {type: chat, path: talks.jsonl, tokenizer: model, length: 96, train_on: assistant, batch: 8}
network:
  - {name: emb, type: embedding, vocab: 400, units: 16}
  - {name: head, type: dense, units: 400}
loss: {type: softmax_cross_entropy, ignore_index: -100}
optimizer: {type: adamw, learning_rate: 0.01}
train: {epochs: 3}
parallel: {mode: data_parallel}
launch: {device: cpu, ranks: 1}
"""

# Attention and positions are computed per document; {documents} and {mask} are empty in a job whose rows have one document.
DECODER = """dataset: {{type: chat, path: talks.jsonl, tokenizer: model, length: {length}, train_on: assistant, batch: 1, pack: {pack}, shuffle: false}}
network:
  - {{name: emb, type: embedding, vocab: 400, units: 32}}
  - {{name: qkv, type: dense, units: 96}}
  - {{name: turn, type: rotary, heads: 4, packing: heads, inputs: [qkv{documents}]}}
  - {{name: attn, type: attention, heads: 4, causal: true, inputs: [turn{documents}]{mask}}}
  - {{name: head, type: dense, units: 400}}
loss: {{type: softmax_cross_entropy, ignore_index: -100}}
optimizer: {{type: sgd, learning_rate: 0.5}}
train: {{steps: 6, log_every: 1}}
launch: {{device: cpu, ranks: 1}}
"""


def run(program, folder, *words, code=0):
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def talks():
    rows = []
    for i in range(48):
        messages = [{"role": "user", "content": f"Question {i}: why is {i} odd? ümlaut 😀"}, {"role": "assistant", "content": f"Because {i * i}."}]
        if i % 3 == 0:
            messages += [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
        rows.append({"messages": messages})
    rows[7] = {"messages": [{"role": "user", "content": "no answer"}]}
    return rows


def losses(folder, number):
    log = folder / "log_output" / str(number) / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row["loss"] for row in rows if "run_step" in row and "loss" in row]


def compare_packed(program, folder, first_run):
    """All documents in one batch, packed or a row each: the same losses at every step, on one rank and on others."""
    (folder / "rows.yaml").write_text(DECODER.format(length=96, pack="false", documents="", mask=""))
    (folder / "packed.yaml").write_text(DECODER.format(length=384, pack="true", documents=", documents", mask=", mask: documents"))
    found = []
    for job, plans in [("rows.yaml", [[]]), ("packed.yaml", [[], ["launch.ranks=2", "parallel.mode=semi_auto_parallel",
                                                                 "parallel.strategies={attn: [[1, 1, 2], [1, 1]]}"]])]:
        rows = int(re.search(r"48 documents in (\d+) rows", run(program, folder, "data", "check", job)).group(1))
        for words in plans:
            run(program, folder, "run", job, f"dataset.batch={rows}", *words)
            found.append((rows, losses(folder, first_run + len(found))))
    (rows, expected), *others = found
    for packed, got in others:
        assert packed * 3 < rows, (packed, rows)
        assert len(got) == len(expected) == 6 and all(abs(a - b) < 1e-5 for a, b in zip(expected, got)), (expected, got)


def marked(shown):
    """The trained text of each row that `data show --tokens` prints."""
    rows = re.split(r"(?m)^ +\d+  .* positions used, \d+ trained\n", shown)[1:]
    return ["".join(re.findall("«(.*?)»", row, re.S)) for row in rows]


def on_terminal(program, folder, *words):
    """Returns the output of the command on a terminal."""
    control, terminal = pty.openpty()
    environment = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm"}
    process = subprocess.Popen([program, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    text = b""
    while True:
        try:
            part = os.read(control, 65536)
        except OSError:  # Linux: the other end is closed
            part = b""
        if not part:
            break
        text += part
    os.close(control)
    assert process.wait() == 0, text
    return text.decode().replace("\r\n", "\n")


def show_packed(program, folder, shown_alone):
    """Rows of several documents: each document has the trained text that it has in a row of its own, and a line begins each but the first."""
    words = ("data", "show", "packed.yaml", "--tokens", "-n", "48", "dataset.shuffle=false")
    plain, colored = run(program, folder, *words), on_terminal(program, folder, *words)
    rows = len(re.findall(r"(?m)^ +\d+  .* positions used, \d+ trained$", plain))
    documents = re.split(r"(?m)^(?:----- document \d+| +\d+  .* positions used, \d+ trained)\n", plain)[1:]
    assert len(documents) == 48 and plain.count("\n----- document ") == 48 - rows and rows < 20, plain
    trained = lambda texts: sorted("".join(re.findall("«(.*?)»", text, re.S)) for text in texts)
    assert trained(documents) == sorted(marked(shown_alone))
    green = re.findall("\033\\[[0-9;]*32m(.*?)\033\\[", colored, re.S)
    assert sorted("".join(green)) == sorted("".join(trained(documents))) and "«" not in colored, colored


def mark_answers_of_families(program, folder):
    """In the templates of ten families the answers of all turns are trained, and no word of a user, also where a template renders the last
    message, or the last one of a user, differently."""
    (folder / "families").mkdir()
    model = folder / "families" / "model"
    shutil.copytree(folder / "model", model)
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    turns = [["Why one?", "Because FIRST."], ["Why two?", "Because SECOND."], ["Why three?", "Because THIRD."]]
    messages = [{"role": role, "content": text} for turn in turns for role, text in zip(("user", "assistant"), turn)]
    for name, template in FAMILIES.items():
        talks = [messages[:2], messages] + ([] if name == "gemma2" else [[{"role": "system", "content": "Be brief."}, *messages]])
        (folder / "families" / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        (model / "chat_template.jinja").write_text(template, encoding="utf-8")
        (folder / "families" / "job.yaml").write_text(JOB)
        shown = run(program, folder / "families", "data", "show", "job.yaml", "--tokens", "-n", "4", "dataset.shuffle=false", "dataset.length=512", "dataset.batch=1")
        for talk, trained in zip(talks, marked(shown), strict=True):
            answers = [message["content"] for message in talk if message["role"] == "assistant"]
            assert re.findall(r"Because [A-Z]+\.", trained) == answers and "Why" not in trained and "brief" not in trained, (name, trained)


def compare_with_transformers(folder, rows, shown):
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        print("transformers is not installed: the trained tokens are not compared with it")
        return
    tok = PreTrainedTokenizerFast.from_pretrained(str(folder / "model"))
    expected = []
    for row in rows:
        out = tok.apply_chat_template(row["messages"], chat_template=CHATML, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        expected.append(tok.decode([t for t, m in zip(out["input_ids"], out["assistant_masks"]) if m]))
    found = marked(shown)
    assert found == expected, [(a, b) for a, b in zip(found, expected) if a != b][:3]
    print(f"{len(rows)} conversations: the trained tokens are those of transformers")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder, rows = pathlib.Path(name), talks()
        (folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / "talks.txt").write_text("\n".join(m["content"] for row in rows for m in row["messages"]), encoding="utf-8")
        run(program, folder, "data", "train-tokenizer", "talks.txt", "--vocab", "400", "--special", "<|im_end|>", "<|im_start|>", "-o", "model")
        (folder / "model" / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
        (folder / "job.yaml").write_text(JOB)
        note = "note: dataset: 1 of 48 conversations trains nothing (1 without an answer of an assistant); first:"
        checked, planned = [" ".join(run(program, folder, command, "job.yaml").split()) for command in ("check", "plan")]
        assert note in checked and note in planned and "talks.jsonl:8" in checked, (checked, planned)
        report = run(program, folder, "data", "check", "job.yaml")
        assert "48 documents in 48 rows of 96" in report and "1 document trains nothing; first: " in report and "talks.jsonl:8" in report, report
        shown = run(program, folder, "data", "show", "job.yaml", "--tokens", "-n", "48", "dataset.shuffle=false")
        compare_with_transformers(folder, rows, shown)
        mark_answers_of_families(program, folder)
        for number, words in enumerate([["launch.ranks=1"], ["launch.ranks=2"], ["launch.ranks=4", "dataset.workers=3"]], 1):
            run(program, folder, "run", "job.yaml", *words)
            assert len(losses(folder, number)) == 18, losses(folder, number)
            assert all(abs(a - b) < 1e-5 for a, b in zip(losses(folder, 1), losses(folder, number))), (losses(folder, 1), losses(folder, number))
        compare_packed(program, folder, 4)
        show_packed(program, folder, shown)
        refused = run(program, folder, "check", "job.yaml", "dataset.pack=true", code=2)
        assert "no layer reads the field `documents`" in refused, refused
        refused = run(program, folder, "check", "job.yaml", "loss=softmax_cross_entropy", code=2)
        assert "ignore_index: -100" in refused, refused
        refused = run(program, folder, "check", "job.yaml", "network[0].vocab=300", code=2)
        assert " has token " in refused, refused
    print("all checks passed")


if __name__ == "__main__":
    main()
