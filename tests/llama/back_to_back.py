"""Streams back to back: each request leaves the moment the one before has ended.

Usage: back_to_back.py HOST:PORT CLIENTS REQUESTS_EACH

llama.cpp's server closes its connection right after every streamed answer, though its headers
promise to keep it. A proxy that believes the headers sends the next request into a closed
connection. Prints one JSON line: how many requests ended how.
"""

import collections
import http.client
import json
import sys
import threading


def ask(connection, client):
    """One streamed request over a kept connection; how it ended."""
    body = json.dumps(
        {
            "model": "tiny",
            "stream": True,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": f"client {client}"}],
        }
    )
    connection.request(
        "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        return f"status {answer.status}"
    return "whole" if text.endswith(b"data: [DONE]\n\n") else "cut"


def work(address, client, requests, ends):
    connection = http.client.HTTPConnection(address, timeout=60)
    for _ in range(requests):
        try:
            ends.append(ask(connection, client))
        except (OSError, http.client.HTTPException) as error:
            ends.append(type(error).__name__)
            connection.close()


def main():
    address, clients, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ends = []
    threads = [
        threading.Thread(target=work, args=(address, client, requests, ends))
        for client in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(collections.Counter(ends)))


if __name__ == "__main__":
    main()
