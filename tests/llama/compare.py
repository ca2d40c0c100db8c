"""Asks the same of an engine directly and through a proxy, with the openai package, and compares.

Usage: compare.py ENGINE_URL PROXY_URL

Every text must be equal: at temperature 0 with a fixed seed the engine is deterministic. Prints
one JSON line of what was compared; exit code 1 and a message where two differ.
"""

import json
import sys

import openai

PROMPTS = [
    "the train takes its track",
    "who sets the points?",
    "far from the station: 好🙂 \"quoted\" \\ and\nlines",
    "long " * 300,
]
LENGTHS = [1, 7, 64]


def client(base):
    # Retries would hide what the test looks for.
    return openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=60)


def arguments(prompt, length):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}]
    return dict(model="tiny", messages=messages, max_tokens=length, temperature=0, seed=1)


def unary(api, prompt, length):
    answer = api.chat.completions.create(**arguments(prompt, length))
    choice = answer.choices[0]
    return choice.message.content, choice.finish_reason, answer.usage.completion_tokens


def streamed(api, prompt, length):
    stream = api.chat.completions.create(
        **arguments(prompt, length), stream=True, stream_options={"include_usage": True}
    )
    pieces, reason, tokens = [], None, None
    for event in stream:
        if event.usage is not None:
            tokens = event.usage.completion_tokens
        for choice in event.choices:
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    return "".join(pieces), reason, tokens


def completion(api, prompt, length):
    answer = api.completions.create(
        model="tiny", prompt=prompt, max_tokens=length, temperature=0, seed=1
    )
    return answer.choices[0].text, answer.choices[0].finish_reason, answer.usage.completion_tokens


def main():
    direct, proxied = client(sys.argv[1]), client(sys.argv[2])
    compared = 0
    for ask in (unary, streamed, completion):
        for prompt in PROMPTS:
            for length in LENGTHS:
                expected = ask(direct, prompt, length)
                seen = ask(proxied, prompt, length)
                if seen != expected:
                    sys.exit(f"{ask.__name__} {prompt[:40]!r}: {seen!r}, expected {expected!r}")
                if not expected[0] or expected[2] != length:
                    sys.exit(f"{ask.__name__} {prompt[:40]!r}: the engine said {expected!r}")
                compared += 1
    models = [model.id for model in proxied.models.list()]
    print(json.dumps({"compared": compared, "models": models, "unknown": unknown_model(proxied)}))


def unknown_model(api):
    """The code of the error that a model nobody serves is answered with."""
    try:
        api.chat.completions.create(model="unknown", messages=[])
    except openai.NotFoundError as error:
        return error.code
    return None


if __name__ == "__main__":
    main()
