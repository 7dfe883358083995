#!/usr/bin/env python3
"""gguf_test.py TRAINCTL [FAMILY ...]: models as files of llama.cpp.

For each family, transformers writes a small random model with a tokenizer, a job trains it a little, and the checkpoint is exported as a
model folder and as GGUF files in f32, f16 and q8_0. transformers opens each file by way of the package gguf, and has the weights of the
folder, rounded as the type says. llama.cpp (the package llama_cpp or xllamacpp) gives the log probabilities of the folder's model, and
splits texts into the same tokens; this part is left out if neither is installed.

Exits with 77 (Skipped) without PyTorch, transformers or gguf."""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

SKIPPED = 77

try:
    import accelerate  # noqa: F401  (transformers reads GGUF files with it)
    import gguf
    import numpy as np
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    python = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
    if python.exists() and pathlib.Path(sys.executable) != python:
        sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
VOCAB = 384
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
TEXTS = ["the cat sat on the mat", "Hello, world! It's 2024: 12345 numbers.", "naïve café 漢字 \U0001F600", "  two spaces\n\nand lines\t", "def f(x): return x"]
CORPUS = ["the cat sat on the mat and the dog sat too", "hello world, it is what it is", "numbers 1 2 3 12 123", "return x and y", "and lines of text"] * 20
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
BASE = dict(vocab_size=VOCAB, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=2)
SIZES = dict(**BASE, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def run(*words, expect=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == expect, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def byte_level(pattern):
    """A tokenizer of GPT-2's kind, as Llama 3 and Qwen have it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    pre = tokenizers.pre_tokenizers
    if pattern is None:
        made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    else:
        made.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB - 20, special_tokens=["<s>", "</s>", "<pad>"],
                                             initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def sentencepiece_like():
    """A tokenizer of Llama 2's kind: pieces that begin with a mark for the blank, and bytes for all other characters."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")])
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse(),
                                                 tokenizers.decoders.Strip(" ", 1, 0)])
    special = ["<s>", "</s>", "<pad>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(vocab_size=VOCAB - 4, special_tokens=special, show_progress=False))
    parts = json.loads(made.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def families():
    from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                              LlamaForCausalLM, MistralConfig, MistralForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                              Qwen3ForCausalLM)
    gemma = dict(SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=32)
    # transformers takes the 1024 positions of GPT-2 for every file.
    yield "gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=1024, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1)), byte_level(None)
    yield "llama3", LlamaForCausalLM(LlamaConfig(**SIZES, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32})), byte_level(LLAMA3)
    yield "llama2", LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)), sentencepiece_like()
    yield "mistral", MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=16)), sentencepiece_like()
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**SIZES)), byte_level(QWEN2)
    # transformers takes heads of 128 for every file of Qwen 3.
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=128)), byte_level(QWEN2)
    yield "gemma2", Gemma2ForCausalLM(Gemma2Config(**gemma)), sentencepiece_like()
    yield "gemma3", Gemma3ForCausalLM(Gemma3TextConfig(**gemma)), sentencepiece_like()
    yield "phi3", Phi3ForCausalLM(Phi3Config(**SIZES)), sentencepiece_like()


def rounded(values, kind):
    """The values that a reader of the file gets back."""
    values = values.astype(np.float32)
    if values.ndim < 2 or kind == "f32":
        return values
    if kind == "f16" or values.shape[-1] % 32:
        return values.astype(np.float16).astype(np.float32)
    return gguf.quants.dequantize(gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0)


def is_turned(name):
    """Matrices that GPT-2's folders have transposed: blocks of q8_0 run along the other dim."""
    return any(part in name for part in (".c_attn.", ".c_proj.", ".c_fc."))


def check_weights(name, folder, file, kind):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder.parent, gguf_file=file.name, dtype=torch.float32).state_dict()
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
    for key, values in ours.items():
        values, found = values.numpy(), theirs[key].numpy()
        expected = rounded(values.T, kind).T if is_turned(key) and values.ndim == 2 else rounded(values, kind)
        largest = float(np.abs(found - expected).max())
        # Norms of Gemma pass through 1 + weight, which rounds; a permutation of rows does not change blocks along them.
        assert largest <= (2e-7 if "gemma" in name else 0), (name, key, kind, largest)
    return len(ours)


def check_tokenizer(name, file, tokenizer):
    fields = gguf.GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    vocab = tokenizer.get_vocab()
    assert len(tokens) == VOCAB and all(tokens[id] == token for token, id in vocab.items()), name
    assert fields["tokenizer.ggml.bos_token_id"].contents() == 0 and fields["tokenizer.ggml.eos_token_id"].contents() == 1
    assert fields["tokenizer.chat_template"].contents() == CHAT
    assert fields["general.name"].contents() == "tuned"


class LlamaCpp:
    """The log probabilities and tokens of llama.cpp."""

    def __init__(self, file):
        try:
            import llama_cpp
            self.model = llama_cpp.Llama(str(file), n_ctx=64, logits_all=True, verbose=False)
            self.server = None
        except ImportError:
            import xllamacpp
            params = xllamacpp.CommonParams()
            params.model.path = str(file)
            params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 64, 1, False, 1
            self.server = xllamacpp.Server(params)

    def tokens(self, text):
        if self.server is None:
            return self.model.tokenize(text.encode(), add_bos=False, special=False)
        return self.ask("tokenize", {"content": text, "add_special": False})["tokens"]

    def ask(self, what, question):
        request = urllib.request.Request(f"{self.server.listening_address}/{what}", json.dumps(question).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def log_probabilities(self, ids):
        """{token: log probability} of the most probable tokens after these."""
        if self.server is None:
            self.model.reset()
            self.model.eval(ids)
            logits = np.array(self.model.scores[len(ids) - 1])
            return dict(enumerate(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()))
        said = self.ask("completion", {"prompt": ids, "n_predict": 1, "n_probs": 20, "temperature": -1, "cache_prompt": False})
        return {one["id"]: one["logprob"] for one in said["completion_probabilities"][0]["top_logprobs"]}


def check_llama_cpp(name, folder, file, tokenizer):
    llama = LlamaCpp(file)
    for text in TEXTS:
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert llama.tokens(text) == expected, (name, text, llama.tokens(text), expected)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    worst = 0.0
    for seed in range(3):
        ids = np.random.default_rng(seed).integers(3, VOCAB - 30, 24).tolist()
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1).numpy()
        found = llama.log_probabilities(ids)
        assert len(found) >= 20
        worst = max(worst, max(abs(value - expected[token]) for token, value in found.items()))
    assert worst < 2e-3, (name, worst)
    return worst


def check(name, model, tokenizer, folder):
    hf = folder / "hf"
    for parameter in model.parameters():  # rows of ones and zeros would hide a wrong order
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(hf)
    tokenizer.save(str(hf / "tokenizer.json"))
    (hf / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "add_bos_token": False,
                                                          "chat_template": CHAT, "tokenizer_class": "PreTrainedTokenizerFast"}))
    run("init", "--from", hf, "-o", folder / "job.yaml")
    np.random.default_rng(3).integers(0, VOCAB, 4 * 16 * 3 + 1).astype(np.uint16).tofile(folder / "tokens.bin")
    run("run", folder / "job.yaml", "name=tuned", "precision=fp32", "launch.device=cpu", f"launch.log_dir={folder / 'runs'}", "train={steps: 2, checkpoint: {}}",
        f"dataset={{type: tokens, path: {folder / 'tokens.bin'}, length: 16, batch: 4}}", "optimizer={type: adam, learning_rate: 0.001}", "validation=null")
    checkpoint = folder / "runs/1"
    run("checkpoint", "export", checkpoint, "--map", "auto", "-o", f"{folder / 'out'}/")
    bytes_of = {}
    for kind in ("f32", "f16", "q8_0"):
        file = folder / f"{kind}.gguf"
        said = run("checkpoint", "export", checkpoint, "--format", "gguf", "--dtype", kind, "-o", file)
        assert "tensors" in said and not list(folder.glob("*.gguf.*")), said
        count = check_weights(name, folder / "out", file, kind)
        check_tokenizer(name, file, tokenizer)
        bytes_of[kind] = file.stat().st_size
    assert bytes_of["q8_0"] < bytes_of["f16"] < bytes_of["f32"], bytes_of
    try:
        worst = f"llama.cpp's log probabilities within {check_llama_cpp(name, folder / 'out', folder / 'f32.gguf', tokenizer):.1e}"
    except ImportError:
        worst = "llama.cpp is not installed"
    print(f"{name}: {count} tensors in f32, f16 and q8_0 as transformers reads them; {worst}", flush=True)


def main():
    chosen = sys.argv[2:]
    for name, model, tokenizer in families():
        if chosen and name not in chosen:
            continue
        with tempfile.TemporaryDirectory(prefix="trainctl-gguf-") as folder:
            check(name, model, tokenizer, pathlib.Path(folder))


if __name__ == "__main__":
    main()
