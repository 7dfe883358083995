"""Mutations of the text of a job: typing errors, values from other jobs, and broken files."""

import re

NUMBERS = ["0", "1", "-1", "2", "3", "7", "1000000000", "4294967296", "9223372036854775807", "18446744073709551615", "1e400", "-0.0",
           "0.5", "1e-30", ".nan", ".inf", "0x10", "010", "1_000", "12px"]
VALUES = ["", "~", "true", "no", "[]", "{}", "[1, 2]", "{a: 1}", "'", '"', "text", "[[1]]", "*a", "&a", "!tag x", "|", "- 1",
          "\"\\u001b[31m\"", "'*'", "..", "/", "/dev/null", "/nonexistent/x"]
NUMBER = re.compile(r"(?<![\w.\"'$])-?\d+(?:\.\d+)?(?![\w.])")
ENTRY = re.compile(r"([A-Za-z_][\w*.]*): *([^,{}\[\]#\n]+|\[[^\[\]\n]*\])")
SIGNS = "{}[]:,'\"#&*!|>-%@` \t\n"


def replaced(text, match, by, group=0):
    return text[:match.start(group)] + by + text[match.end(group):]


def any_of(random, pattern, text):
    found = list(pattern.finditer(text))
    return random.choice(found) if found else None


def number(random, text, _):
    match = any_of(random, NUMBER, text)
    return match and replaced(text, match, random.choice(NUMBERS))


def value(random, text, _):
    match = any_of(random, ENTRY, text)
    return match and replaced(text, match, random.choice(VALUES), 2)


def value_of_another_entry(random, text, others):
    match, other = any_of(random, ENTRY, text), any_of(random, ENTRY, random.choice(others))
    return match and other and replaced(text, match, other[2], 2)


def key(random, text, others):
    match, other = any_of(random, ENTRY, text), any_of(random, ENTRY, random.choice(others))
    return match and other and replaced(text, match, other[1], 1)


def misspelt(random, text, _):
    match = any_of(random, re.compile(r"\w+"), text)
    if not match:
        return None
    word, at = match[0], random.randrange(len(match[0]))
    return replaced(text, match, random.choice([word[:at] + word[at + 1:], word + "s", word[:at] + "x" + word[at:], word.upper()]))


def line_left_out(random, text, _):
    lines = text.splitlines(True)
    del lines[random.randrange(len(lines))]
    return "".join(lines)


def line_twice(random, text, _):
    lines = text.splitlines(True)
    line = random.choice(lines)
    lines.insert(random.randrange(len(lines) + 1), line)
    return "".join(lines)


def line_of_another(random, text, others):
    lines = text.splitlines(True)
    lines.insert(random.randrange(len(lines) + 1), random.choice(random.choice(others).splitlines(True)))
    return "".join(lines)


def indented(random, text, _):
    lines = text.splitlines(True)
    at = random.randrange(len(lines))
    lines[at] = random.choice([" ", "   ", "\t"]) + lines[at] if random.random() < 0.6 else lines[at].lstrip(" ")
    return "".join(lines)


def cut_off(random, text, _):
    return text[:random.randrange(len(text))]


def sign(random, text, _):
    at = random.randrange(len(text))
    return text[:at] + random.choice(SIGNS) + text[at + random.randrange(2):]


def odd_character(random, text, _):
    at = random.randrange(len(text))
    return text[:at] + random.choice(["\0", "\x1b", "\x7f", "\udcff", "\u202e", "\ufeff", "é", "\r", "\u2028"]) + text[at:]


ALL = [number, number, number, value, value, value_of_another_entry, value_of_another_entry, key, misspelt, misspelt, line_left_out,
       line_twice, line_of_another, indented, cut_off, sign, sign, odd_character]


def mutate(random, text, others):
    """The text after one to three mutations, and their names."""
    names = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        mutation = random.choice(ALL)
        mutated = mutation(random, text, others) if text else None
        if mutated is not None and mutated != text:
            text, names = mutated, names + [mutation.__name__]
    return text, names
