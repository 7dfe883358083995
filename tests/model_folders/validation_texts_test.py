#!/usr/bin/env python3
"""validation_texts_test.py TRAINCTL: validation.generate under every plan that generates text.

The job of the template finetune_chat trains under several plans. The texts of its validations are those of one rank, and those of the last one
are what `trainctl generate` makes of the final checkpoint. They are in the log, in metrics.jsonl and in the report. Jobs whose plan cannot
generate, or whose prompts do not fit, are refused by `check`."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
QUESTIONS = ["What follows three?", "What color is snow?", "Is \N{SNOWMAN} cold?"]
COMMON = ["launch.device=cpu", "train={epochs: 12, checkpoint: {every_epochs: 6}}", "validation.every_epochs=6"]
CUTS = "strategies: {'h.*.qkv': [[1, 1, 1], [2, 1]], 'h.*.proj': [[1, 1, 2], [1, 2]]}"
PLANS = {
    "one rank": [],
    "one rank, 2 micro-batches": ["parallel.micro_batches=2"],
    "2 ranks": ["launch.ranks=2", "parallel.mode=data_parallel"],
    "4 ranks, weights in shards": ["launch.ranks=4", "parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}"],
    "tensor parallel": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, " + CUTS + "}"],
    "2 stages": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2}"],
    "2 stages of 2 ranks": ["launch.ranks=4", "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2, optimizer_shard: {level: 1, min_kb: 0}}"],
    "gloo": ["launch.ranks=2", "launch.comm=gloo", "parallel.mode=data_parallel"],
}
ADAPTED = ["adapters={lora: {layers: ['h.*.qkv', 'h.*.down'], rank: 4, alpha: 8}}", "optimizer.learning_rate=0.02"]


def run(folder, *words, code=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=900)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{said}"
    return said


def validations(folder, log_dir):
    rows = [json.loads(line) for line in (folder / log_dir / "1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.get("kind") == "validation"]


def train(folder, name, *words):
    said = run(folder, "run", "job.yaml", f"launch.log_dir={name}", *COMMON, *words)
    rows = validations(folder, name)
    assert len(rows) == 2, rows
    for row in rows:
        assert [text["prompt"] for text in row["texts"]] == QUESTIONS, row
    log = (folder / name / "1" / "rank.0" / "stdout").read_text(encoding="utf-8")
    assert log.count("validation text 1: What follows three? -> ") == 2, log
    return [[text["text"] for text in row["texts"]] for row in rows], said


def generated(folder, name, *words):
    """Returns the texts that `trainctl generate` makes from the last checkpoint."""
    lines = run(folder, "generate", "job.yaml", "--checkpoint", name, "--chat", "--prompts", "finetune/prompts.txt", "--max-tokens", "16", "--json",
                "launch.device=cpu", *words)
    return [json.loads(line)["text"] for line in lines.splitlines() if line.startswith("{")]


def refused(folder):
    for words, expected in [
            (["parallel={mode: parameter_server, servers: 1}", "launch.ranks=2"], "validation.generate: is not supported in parameter_server mode"),
            (["parallel={mode: semi_auto_parallel, strategies: {'h.*.norm1': [[1, 2, 1], [1]]}}", "launch.ranks=2"], "(for validation.generate)"),
            (["validation.generate.prompts=none.txt"], "none.txt cannot be read"),
            (["validation.generate.prompts=long.txt"], "validation.generate.prompts: a prompt has"),
            (["validation.generate.temperature=-1"], "validation.generate.temperature")]:
        for command in ("check", "plan"):
            done = subprocess.run([TRAINCTL, command, "job.yaml", "launch.device=cpu", *words], cwd=folder, capture_output=True, text=True, timeout=300)
            assert done.returncode in (2, 3) and expected in done.stdout + done.stderr, (command, words, done.returncode, done.stdout + done.stderr)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        run(folder, "init", "finetune_chat", "-o", "job.yaml")
        (folder / "finetune" / "prompts.txt").write_text("".join(question + "\n" for question in QUESTIONS), encoding="utf-8")
        (folder / "long.txt").write_text("word " * 400 + "\n")
        refused(folder)
        planned = " ".join(run(folder, "plan", "job.yaml", "launch.device=cpu").split())
        assert re.search(r"3 texts of up to \d+ tokens are generated with the current weights, 3 at a time", planned), planned
        expected = None
        for number, (plan, words) in enumerate(PLANS.items()):
            texts, _ = train(folder, f"runs_{number}", *words)
            expected = expected or texts
            assert texts == expected, (plan, texts, expected)
            assert generated(folder, f"runs_{number}/1") == texts[-1], plan
            print(f"{plan}: {texts[-1]}", flush=True)
        assert expected[0] != expected[1], "the weights change between validations"
        adapted = [train(folder, f"adapted_{i}", *ADAPTED, *words)[0] for i, words in enumerate([[], PLANS["2 ranks"], PLANS["2 stages"]])]
        assert adapted[0] == adapted[1] == adapted[2] and adapted[0][0] != adapted[0][1], adapted
        assert generated(folder, "adapted_0/1", *ADAPTED) == adapted[0][-1]
        sampled = [train(folder, f"sampled_{i}", "validation.generate.temperature=2.5", f"validation.generate.seed={seed}", *words)[0]
                   for i, (seed, words) in enumerate([(1, []), (1, PLANS["2 ranks"]), (2, [])])]
        assert sampled[0] == sampled[1] and sampled[0] != sampled[2], sampled
        run(folder, "report", "runs_0/1", "-o", "report.html")
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert '"texts":[{"step":' in page.replace(" ", "") and expected[-1][0] in page, "the report has the texts"
    print("all checks passed")


main()
