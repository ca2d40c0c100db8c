"""Runs llama.cpp's own HTTP server on a kernel-given port of 127.0.0.1 until SIGTERM.

Usage: serve.py MODEL_FILE [SLOTS]

Prints one JSON line when it answers, in the form that Pointsman's daemons print:
{"ready": true, "listen": ["127.0.0.1:PORT"], "pid": PID}
"""

import json
import os
import signal
import sys
import time
import urllib.request

import xllamacpp


def start(model, slots):
    """Starts the server's threads inside this process."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = slots
    params.n_ctx = 4096 * slots
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 64
    params.n_gpu_layers = 0
    params.fit_params = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.warmup = False
    params.offline = True
    return xllamacpp.Server(params)


def wait_healthy(base, deadline_s):
    """Returns once `/health` says 200."""
    last = None
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(base + "/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError as error:
            last = error
        time.sleep(0.02)
    sys.exit(f"llama.cpp's server did not become healthy in {deadline_s} s: {last}")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: serve.py MODEL_FILE [SLOTS]")
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    server = start(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 8)
    base = server.listening_address
    wait_healthy(base, 30)
    address = base.removeprefix("http://")
    ready = {"ready": True, "listen": [address], "pid": os.getpid()}
    print(json.dumps(ready), flush=True)
    signal.sigwait(stops)
    del server
    # The server's threads hold the interpreter's exit up; nothing is left to save.
    os._exit(0)


if __name__ == "__main__":
    main()
