"""Lines of many scripts, code and emoji, the same in every run."""
import pathlib
import random

SENTENCES = [
    "The quick brown fox doesn't jump over the lazy dog; they've said it'll be 12,345.67 dollars.",
    "Größe und Maß: Übermut tut selten gut – sagte »Jürgen« im Jahr 1984.",
    "L'été dernier, j'ai mangé des crêpes à Besançon… n'est-ce pas ?",
    "El niño corrió rápidamente; ¿dónde está la señora Muñoz?",
    "Быстрая коричневая лиса прыгает через ленивую собаку 42 раза.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "敏捷的棕色狐狸跳过了懒狗。2024年3月15日,他买了三本书。",
    "素早い茶色の狐はのろまな犬を飛び越えた。カタカナとひらがな、漢字。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ١٢٣.",
    "השועל החום המהיר קופץ מעל הכלב העצלן.",
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "வேகமான பழுப்பு நரி சோம்பேறி நாயின் மீது குதிக்கிறது.",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "ሰላም ልዑል! ქართული ენა. Հայերեն լեզու.",
    "Việt Nam có nhiều món ăn ngon: phở, bún chả, bánh mì.",
    "İstanbul'da IĞDIR ve ığdır; ŞİŞLİ, ß ẞ ſ K Å",
    "emoji 😀 👩‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ❤️‍🔥 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✨done",
    "combining: e\u0301 a\u0308 n\u0303 o\u0302\u0323 ﬁ ﬂ Å ½ Ⅷ ① ™ ㎏ ｆｕｌｌ ﾊﾝｶｸ",
    "odd blanks:\u00a0non\u2009thin\u3000wide\u200bzero\ufeffbom\u2028line\ttab  two   three",
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A:\n\tpass\r\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; } // != == <= >= && || ->",
    "https://example.org/a_b?c=d&e=%20f#g user.name+tag@mail.example.com",
    "<|endoftext|> <s> </s> [CLS] [MASK] <mask> <|im_start|>user\nhi<|im_end|> <0x0A> ▁▁ ## </w>",
    "I'M HERE, WE'RE, YOU'LL 'tis o'clock ''s 'S 'ſ don’t",
]
SCRIPTS = [(0x21, 0x7E), (0xA1, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x5D0, 0x5EA), (0x620, 0x64A), (0x905, 0x939),
           (0xE01, 0xE30), (0x10D0, 0x10FA), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
           (0x1F300, 0x1F64F), (0x2190, 0x22FF), (0x300, 0x36F), (0x1E00, 0x1EFF), (0x2460, 0x24FF)]


def word(draw):
    low, high = draw.choice(SCRIPTS)
    return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9)))


def mixed(draw):
    parts = []
    for _ in range(draw.randint(1, 14)):
        kind = draw.random()
        if kind < 0.45:
            parts.append(draw.choice(draw.choice(SENTENCES).split(" ")))
        elif kind < 0.8:
            parts.append(word(draw))
        elif kind < 0.9:
            parts.append(str(draw.randint(0, 10 ** draw.randint(1, 12))))
        else:
            parts.append(draw.choice(["", "\n", "\t", " ", "\r\n", "…", "--", "'s", "</s>", "<mask>", "\u3000"]))
    return draw.choice([" ", " ", " ", "", "  "]).join(parts)


def lines(count, source_tree):
    draw = random.Random(7)
    code = []
    for path in sorted(pathlib.Path(source_tree).glob("engine/base/*.cpp")) + sorted(pathlib.Path(source_tree).glob("docs/*.md")):
        code += path.read_text(encoding="utf-8").splitlines()
    result = list(SENTENCES) + ["", " ", "  ", "\n", "a", "▁", "\u0301", " a", "a ", "\u3000x"]
    while len(result) < count:
        kind = draw.random()
        result.append(draw.choice(code) if kind < 0.3 else draw.choice(SENTENCES) if kind < 0.4 else mixed(draw))
    return result[:count]


if __name__ == "__main__":
    import sys
    print("\n".join(lines(int(sys.argv[1]), sys.argv[2])))
