"""Reads a stream that the engine breaks off in the middle, with the openai package.

Usage: broken.py PROXY_URL

Prints one JSON line: the pieces that came, and the exception that ended them. A stream that ends
as if it were whole is exit code 1.
"""

import json
import sys

import openai


def main():
    api = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=60)
    pieces = []
    try:
        stream = api.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        for event in stream:
            pieces += [choice.delta.content for choice in event.choices]
    except Exception as error:  # The kind is what the test looks at.
        kinds = [kind.__name__ for kind in type(error).__mro__]
        print(json.dumps({"pieces": pieces, "error": kinds, "message": str(error)}))
        return
    sys.exit(f"the broken stream ended like a whole one, after {pieces}")


if __name__ == "__main__":
    main()
