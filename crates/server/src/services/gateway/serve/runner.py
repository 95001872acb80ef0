"""Serves a model file with llama.cpp's server, until stdin ends: FILE

One line on stdout tells the port, once the model is loaded. What the library prints goes to stderr.
"""

import json
import os
import sys
import threading

told = os.dup(1)
os.dup2(2, 1)


def end_with_stdin():
    while os.read(0, 4096):
        pass
    os._exit(0)


threading.Thread(target=end_with_stdin, daemon=True).start()

import xllamacpp  # noqa: E402 (loading takes a moment in which stdin may end)

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
# Else answers would name the file as this host does.
params.model_alias = {os.path.basename(sys.argv[1]).removesuffix(".gguf")}
params.hostnames = ["127.0.0.1"]
params.port = 0
# Tokens that all conversations share; the model's own limit holds, too.
params.n_ctx = 16384
params.n_parallel = 4
params.kv_unified = True
# Memory for prompts of conversations that are not under way.
params.cache_ram_mib = 512
# Nobody looks at it but the gateway.
params.ui = False
params.endpoint_slots = False
params.cors_origins = ""

server = xllamacpp.Server(params)
port = int(server.listening_address.rsplit(":", 1)[1])
os.write(told, json.dumps({"port": port}).encode() + b"\n")
os.close(told)
threading.Event().wait()
