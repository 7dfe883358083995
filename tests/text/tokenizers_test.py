"""Trains tokenizers of many kinds with the package `tokenizers`, and compares tokens and decoded texts of 10,000 lines.

    tokenizers_test.py TOKENIZE_LINES [NAME...]
"""
import base64
import json
import pathlib
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(TREE / "tests"))
from corpus import SENTENCES, lines  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
DEEPSEEK = [r"[\r\n]", r"\s?\p{L}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]

CLASSES = [r"\p{Han}+|\p{Cyrillic}+", r"\b\h+\b", r"[[:alpha:]_]+", r"\w+", r"[[:upper:][:digit:]]", r"[^\w\s]{2,3}", r"\B\W"]


def bpe(train, pre, normalizer=None, decoder=None, alphabet=True, **model):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE(**model))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    extra = {k: model[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in model}
    special = [model["unk_token"]] if "unk_token" in model else []
    if model.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in range(256)]
    tok.train_from_iterator(train, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [], limit_alphabet=600, **extra))
    tok.decoder = decoder or decoders.ByteLevel()
    return tok


def unigram(train, normalizer, pre, decoder, **options):
    from tokenizers import Tokenizer, models, trainers
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    common = set("".join(SENTENCES) + "".join(map(chr, range(32, 127))))  # the vocabulary has every character
    train = [text for text in train if set(text) <= common]
    tok.train_from_iterator(train, trainers.UnigramTrainer(vocab_size=2500, show_progress=False, unk_token="<unk>",
                                                           special_tokens=["<s>", "</s>", "<unk>"], **options))
    tok.decoder = decoder
    return tok


def charsmap(rule):
    """The table of a normalization rule of SentencePiece."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f"] * 50), model_writer=model, vocab_size=20,
                                             normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2)
    parsed = proto.ModelProto()
    parsed.ParseFromString(model.getvalue())
    return parsed.normalizer_spec.precompiled_charsmap


def special(tok, content, **options):
    from tokenizers import AddedToken
    tok.add_special_tokens([AddedToken(content, **options)])


def template(tok, single):
    from tokenizers import processors
    names = [t for t in single.split() if t != "$A"]
    tok.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(n, tok.token_to_id(n)) for n in names])


def make(name, train):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    N, P, D = normalizers, pre_tokenizers, decoders
    if name == "gpt2":
        tok = bpe(train, P.ByteLevel(add_prefix_space=False))
        special(tok, "<|endoftext|>")
    elif name == "roberta":
        tok = bpe(train, P.ByteLevel(add_prefix_space=True))
        for t in ("<s>", "</s>"):
            special(tok, t)
        special(tok, "<mask>", lstrip=True)
        tok.post_processor = processors.RobertaProcessing(("</s>", tok.token_to_id("</s>")), ("<s>", tok.token_to_id("<s>")))
    elif name == "llama3":
        tok = bpe(train, P.Sequence([P.Split(Regex(LLAMA3), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
                  ignore_merges=True)
        special(tok, "<|endoftext|>")
        template(tok, "<|endoftext|> $A")
    elif name == "qwen2":
        tok = bpe(train, P.Sequence([P.Split(Regex(QWEN2), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]),
                  N.NFC())
        for t in ("<|im_start|>", "<|im_end|>"):
            special(tok, t)
    elif name == "o200k":
        tok = bpe(train, P.Sequence([P.Split(Regex(O200K), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    elif name == "cl100k":
        tok = bpe(train, P.Sequence([P.Split(Regex(CL100K), "removed", invert=True),
                                     P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    elif name == "bloom":
        tok = bpe(train, P.Sequence([P.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated"),
                                     P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    elif name == "empty":  # matches without characters cut words and groups of digits
        tok = bpe(train, P.ByteLevel(add_prefix_space=False, use_regex=False))
        tok.pre_tokenizer = P.Sequence([P.Split(Regex(p), "isolated") for p in (r"(?<=[a-z])(?=[A-Z])", r"(?=(?:\d{3})+(?!\d))|\s*")] +
                                       [P.ByteLevel(add_prefix_space=False, use_regex=False)])
    elif name == "classes":  # characters that Oniguruma and other libraries put into other classes
        tok = bpe(train, P.Sequence([P.Split(Regex(p), "isolated") for p in CLASSES] +
                                    [P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    elif name == "deepseek":
        steps = [P.Split(Regex(p), "isolated") for p in DEEPSEEK]
        tok = bpe(train, P.Sequence(steps + [P.Digits(individual_digits=True),
                                             P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    elif name == "llama2":
        tok = bpe(train, None, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), alphabet=False, unk_token="<unk>",
                  byte_fallback=True, fuse_unk=True,
                  decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]))
        for t in ("<s>", "</s>"):
            special(tok, t, normalized=False)
        template(tok, "<s> $A")
    elif name == "gemma":
        tok = bpe(train, P.Split(" ", "merged_with_previous"), N.Replace(" ", "▁"), alphabet=False, unk_token="<unk>",
                  byte_fallback=True, fuse_unk=True,
                  decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]))
    elif name == "mistral":
        tok = bpe(train, P.Metaspace(prepend_scheme="first"), alphabet=False, unk_token="<unk>", decoder=D.Metaspace())
        special(tok, "<s>", rstrip=True)
        tok.add_tokens([AddedToken("fox", single_word=True), AddedToken("  ", normalized=False)])
    elif name == "clip":
        tok = bpe(train, P.Sequence([P.WhitespaceSplit(), P.Punctuation("contiguous")]), N.Lowercase(), alphabet=False,
                  unk_token="<unk>", end_of_word_suffix="</w>", decoder=D.BPEDecoder())
    elif name == "subword_prefix":
        tok = bpe(train, P.Sequence([P.Whitespace(), P.Digits()]), N.Sequence([N.NFKD(), N.StripAccents(), N.Strip()]),
                  alphabet=False, unk_token="<unk>", continuing_subword_prefix="##", decoder=D.WordPiece())
    elif name == "bert":
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer, tok.pre_tokenizer = N.BertNormalizer(), P.BertPreTokenizer()
        tok.train_from_iterator(train, trainers.WordPieceTrainer(vocab_size=3000, show_progress=False,
                                special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
        template(tok, "[CLS] $A [SEP]")
        tok.decoder = D.WordPiece()
    elif name == "bert_cased":
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
        tok.normalizer, tok.pre_tokenizer = N.BertNormalizer(lowercase=False, strip_accents=None), P.BertPreTokenizer()
        tok.train_from_iterator(train, trainers.WordPieceTrainer(vocab_size=2000, show_progress=False, special_tokens=["[UNK]"]))
        tok.decoder = D.WordPiece(cleanup=False)
    elif name == "t5":
        tok = unigram(train, N.Sequence([N.Precompiled(charsmap("nmt_nfkc")), N.Replace(Regex(" {2,}"), " ")]),
                      P.Metaspace(prepend_scheme="always"), D.Metaspace())
        template(tok, "$A </s>")
    elif name == "xlmr":
        tok = unigram(train, N.Precompiled(charsmap("nfkc_cf")), P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), D.Metaspace())
        special(tok, "<mask>", lstrip=True)
        template(tok, "<s> $A </s>")
    elif name == "albert":
        tok = unigram(train, N.Sequence([N.Nmt(), N.NFKC(), N.Lowercase(), N.Strip(), N.Replace("``", '"')]),
                      P.Sequence([P.Digits(individual_digits=True), P.Metaspace(prepend_scheme="first")]), D.Metaspace())
    elif name == "words":
        tok = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tok.normalizer = N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents()])
        tok.pre_tokenizer = P.Sequence([P.Whitespace(), P.Punctuation()])
        tok.train_from_iterator(train, trainers.WordLevelTrainer(vocab_size=2000, show_progress=False, special_tokens=["<unk>"]))
    return tok


NAMES = ["gpt2", "roberta", "llama3", "qwen2", "o200k", "cl100k", "bloom", "classes", "empty", "deepseek", "llama2", "gemma", "mistral", "clip",
         "subword_prefix", "bert", "bert_cased", "t5", "xlmr", "albert", "words"]


def ours(program, path, texts):
    done = subprocess.run([program, path], input="".join(json.dumps(t) + "\n" for t in texts), text=True,
                          capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        raise SystemExit(f"{path}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare(name, program, train, texts, folder):
    tok = make(name, train)
    path = str(folder / f"{name}.json")
    tok.save(path)
    results = ours(program, path, texts)
    with_special, plain = tok.encode_batch(texts), tok.encode_batch(texts, add_special_tokens=False)
    wrong = 0
    for text, result, a, b in zip(texts, results, with_special, plain):
        wanted = {"ids": a.ids, "plain": b.ids, "text": tok.decode(a.ids, skip_special_tokens=False), "short": tok.decode(a.ids)}
        for key, value in wanted.items():
            if result[key] != value:
                wrong += 1
                if wrong <= 5:
                    print(f"{name}: {key} of {text!r}\n  expected {value!r}\n  found    {result[key]!r}")
                    if key == "ids":
                        print("  tokens  ", a.tokens)
    print(f"{name}: {len(texts)} lines, {sum(len(a.ids) for a in with_special)} tokens, {wrong} differences", flush=True)
    return wrong


def compare_sentencepiece(kind, program, train, texts, folder):
    """A model that the package sentencepiece trains, and the tokens that it gives."""
    import sentencepiece
    path = folder / f"{kind}.model"
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(t for t in train if t.strip() and "\0" not in t), model_writer=file,
                                                 vocab_size=6000, model_type=kind, byte_fallback=kind == "bpe", character_coverage=0.98,
                                                 hard_vocab_limit=False, minloglevel=2)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    results = ours(program, str(path), texts)
    # Versions of the library choose differently among segmentations of equal scores.
    score = lambda ids: sum(theirs.get_score(i) for i in ids)  # noqa: E731
    same = lambda a, b: a == b or (kind == "unigram" and abs(score(a) - score(b)) < 1e-3)  # noqa: E731
    wrong = [t for t, r in zip(texts, results) if not same(r["ids"], theirs.encode(t)) or r["text"] != theirs.decode(theirs.encode(t))]
    print(f"sentencepiece {kind}: {len(texts)} lines, {len(wrong)} differences {wrong[:3]!r}", flush=True)
    return len(wrong)


def main():
    try:
        import sentencepiece  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as missing:
        environment = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
        if environment.exists() and pathlib.Path(sys.executable) != environment:
            sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
        print(f"skipped: {missing}; ./bootstrap peers installs it")
        sys.exit(77)
    program, names = sys.argv[1], sys.argv[2:] or NAMES
    texts = lines(10_000, TREE)
    with tempfile.TemporaryDirectory() as folder:
        wrong = [compare(name, program, texts[::3], texts, pathlib.Path(folder)) for name in names]
        if not sys.argv[2:]:
            wrong += [compare_sentencepiece(kind, program, texts[::3], texts, pathlib.Path(folder)) for kind in ("unigram", "bpe")]
    sys.exit(1 if any(wrong) else 0)


if __name__ == "__main__":
    main()
