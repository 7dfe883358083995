"""Renders chat templates of model families with jinja2, as transformers sets it up, and with ours.

    templates_test.py RENDER_TEMPLATE [TEMPLATE.jinja...]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chat_templates import FAMILIES, REFUSED, SNIPPETS  # noqa: E402

WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather <b>&'x'", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1.5}}, "required": ["city"]}}}
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": "2"}}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    [m("user", "Why is the sky blue?")],
    [m("user", "  Hi \n"), m("assistant", " Hello! ")],
    [m("system", "Be brief."), m("user", "Größe?"), m("assistant", "<think>\nhm\n</think>\n\n42 😀"), m("user", "Sure?"), m("assistant", "Yes.")],
    [m("user", "a"), m("assistant", "b"), m("user", "c")],
    [m("user", "Weather?"), m("assistant", "", tool_calls=[CALL]), m("tool", "rain", tool_call_id="abcdef123", name="weather"), m("assistant", "It rains.")],
    [m("user", "x"), m("assistant", None, tool_calls=[CALL, CALL]), m("tool", "1"), m("tool", "2"), m("assistant", "done", reasoning_content="because")],
    [m("assistant", "out of order"), m("user", "x")],
    [m("system", "only")],
]


def variables():
    for chat in CHATS:
        for prompt in (False, True):
            common = {"messages": chat, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
            yield common
            yield {**common, "tools": [WEATHER, WEATHER], "enable_thinking": False}
    yield {**common, "builtin_tools": ["brave_search", "code_interpreter"], "tools": None, "date_string": "1 Jan 2026"}


def theirs(source, contexts):
    from transformers.utils.chat_template_utils import _compile_jinja_template
    template = _compile_jinja_template(source)
    results = []
    for context in contexts:
        blocks, marks = [], []
        try:
            with template.environment.activate_tracker(blocks, marks):
                for block in template.generate(**context):
                    blocks.append(block)
            text = "".join(blocks)
            results.append({"text": text, "generated": [text[a:b] for a, b in marks]})
        except Exception as error:  # noqa: BLE001
            results.append({"error": str(error)})
    return results


def ours(program, source, contexts):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8", newline="") as file:
        file.write(source)
        file.flush()
        done = subprocess.run([program, file.name], input="".join(json.dumps(c) + "\n" for c in contexts), text=True, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare(program, name, source):
    contexts = list(variables())
    found, wrong = ours(program, source, contexts), 0
    if "refused" in found[0]:
        print(f"{name}: refused: {found[0]['refused']}")
        return 1
    expected = theirs(source, contexts)
    errors = 0
    for context, a, b in zip(contexts, expected, found):
        errors += "error" in a
        if ("error" in a) != ("error" in b) or a.get("text") != b.get("text") or ("error" not in a and a["generated"] != b["generated"]):
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {json.dumps(context)[:300]}\n  expected {a!r}\n  found    {b!r}")
    print(f"{name}: {len(contexts)} conversations, of which {errors} are errors; {wrong} differ", flush=True)
    return wrong


def main():
    try:
        import transformers  # noqa: F401
    except ImportError as missing:
        environment = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
        if environment.exists() and pathlib.Path(sys.executable) != environment:
            sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
        print(f"skipped: {missing}; ./bootstrap peers installs it")
        sys.exit(77)
    program = sys.argv[1]
    if sys.argv[2:]:
        templates = {path: pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[2:]}
        sys.exit(1 if sum([compare(program, name, source) for name, source in templates.items()]) else 0)
    wrong = sum([compare(program, name, source) for name, source in FAMILIES.items()])
    for number, source in enumerate(SNIPPETS):
        wrong += compare(program, f"snippet {number}", source)
    for source, word in REFUSED:
        answer = ours(program, source, [{}])[0]
        if word not in answer.get("refused", answer.get("error", "")):
            wrong += 1
            print(f"{source!r} should be refused with '{word}': {answer}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
