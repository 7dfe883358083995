"""Tokens per second of `trainctl data tokens` and of the package `tokenizers`, on the same documents and threads.

    tokenizer_speed.py TRAINCTL DOCUMENTS.jsonl TOKENIZER.json [THREADS]

Prints MB/s of both, each the best of three runs. Both read the documents from memory or the page cache; the time of
`tokenizers` is that of encode_batch_fast alone, and the time of trainctl includes reading, parsing JSON and writing.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

program, documents, tokenizer = sys.argv[1:4]
threads = int(sys.argv[4]) if len(sys.argv) > 4 else 2
os.environ["RAYON_NUM_THREADS"] = str(threads)
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy  # noqa: E402
import tokenizers  # noqa: E402

texts = [json.loads(line)["text"] for line in open(documents, encoding="utf-8")]
size = sum(len(t.encode()) for t in texts)
tok = tokenizers.Tokenizer.from_file(tokenizer)


def best(run):
    times = []
    for _ in range(3):
        start = time.monotonic()
        result = run()
        times.append(time.monotonic() - start)
    return min(times), result


with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "out.bin"
    ours, _ = best(lambda: subprocess.run([program, "data", "tokens", documents, "--tokenizer", tokenizer, "-o", out, "--format", "raw",
                                           "--force", "--threads", str(threads)], check=True, stdout=subprocess.DEVNULL))
    ids = numpy.fromfile(out, numpy.uint16 if tok.get_vocab_size() <= 65536 else numpy.int32)
theirs, encoded = best(lambda: tok.encode_batch_fast(texts))
expected = numpy.concatenate([numpy.array(e.ids, dtype=ids.dtype) for e in encoded])
same = ids.shape == expected.shape and (ids == expected).all()
print(f"{pathlib.Path(tokenizer).stem}: trainctl {size / ours / 1e6:.1f} MB/s, tokenizers {size / theirs / 1e6:.1f} MB/s, "
      f"ratio {theirs / ours:.1f}, {'the same tokens' if same else 'DIFFERENT TOKENS'}")
