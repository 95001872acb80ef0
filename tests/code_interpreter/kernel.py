"""A kernel for tests, in the place of python_kernel.py: `exec` and no IPython."""

import json
import os
import signal
import socket
import sys
import time


def be_kernel(folder, requests, events, stdout, stderr):
    os.setsid()
    os.chdir(folder)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    names = {"say": lambda **event: os.write(events, json.dumps(event).encode() + b"\n"), "os": os}
    for line in os.fdopen(requests):
        request = json.loads(line)
        names["request"] = request
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exec(request["code"], names)
        except KeyboardInterrupt:
            names["interrupted"] = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if names.get("leaving"):
            os.write(events, b"left\n")
            time.sleep(0.2)
            return
        os.write(events, b"end\n")


def main():
    asked = socket.socket(fileno=int(sys.argv[1]))
    asked.send(b"ready")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        folder, pipes, _, _ = socket.recv_fds(asked, 4096, 4)
        if not folder:
            return
        if (pid := os.fork()) == 0:
            asked.close()
            try:
                be_kernel(folder.decode(), *pipes)
            finally:
                os._exit(0)
        for pipe in pipes:
            os.close(pipe)
        asked.send(str(pid).encode())


main()
