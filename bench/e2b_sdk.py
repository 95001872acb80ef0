"""What E2B's SDK for Python takes at Berth, beside the same by Berth's own API: a line of JSON for each figure. Wants
E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL."""

import io
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from e2b import Sandbox

ROUNDS = 20
AT_ONCE = 30
COMMANDS = 100
FILE = 256 << 20


def tell(name, value, unit, detail=""):
    print(json.dumps({"name": name, "value": value, "unit": unit, "detail": detail}), flush=True)


def timed(what):
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def first():
    box = Sandbox.create(timeout=120)
    box.commands.run("true")
    return box


def creation():
    times, boxes = [], []
    for _ in range(ROUNDS):
        times.append(timed(lambda: boxes.append(first())) * 1e3)
        boxes.pop().kill()
    tell("create and commands.run", statistics.median(times), "ms", f"best {min(times):.0f}, worst {max(times):.0f} ms")


def burst():
    time.sleep(15)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.perf_counter()
        boxes = list(pool.map(lambda _: first(), range(AT_ONCE)))
        tell(f"{AT_ONCE} at once", time.perf_counter() - began, "s")
        list(pool.map(lambda box: box.kill(), boxes))


def api():
    """A client of Berth's own API with the same key."""
    key = bytes.fromhex(os.environ["E2B_API_KEY"].removeprefix("e2b_")).decode()
    return httpx.Client(headers={"Authorization": f"Bearer {key}"})


def beside(name, sdk, own):
    """Calls both in turns."""
    pairs = []
    for _ in range(COMMANDS):
        there = timed(sdk)
        pairs.append((there, timed(lambda: own().raise_for_status())))
    theirs, ours = (statistics.median(column) * 1e3 for column in zip(*pairs))
    tell(name, theirs, "ms", f"{theirs / ours:.2f} times the API's own call, {ours:.1f} ms")


def inside():
    time.sleep(15)
    box = first()
    own = api()
    room = f"{os.environ['E2B_SANDBOX_URL']}/sandbox/{box.sandbox_id}"
    shell = {"argv": ["/bin/bash", "-l", "-c", "true"]}
    beside("commands.run", lambda: box.commands.run("true"), lambda: own.post(f"{room}/commands", json=shell))
    beside("files.exists", lambda: box.files.exists("/tmp"), lambda: own.get(f"{room}/files/stat?root=true&path=/tmp"))
    content = io.BytesIO(b"\xa5" * FILE)
    tell("upload", FILE / 1e6 / timed(lambda: box.files.write("/home/user/big", content)), "MB/s")
    tell("download", FILE / 1e6 / timed(lambda: all(box.files.read("/home/user/big", format="stream"))), "MB/s")
    box.kill()


parts = {"creation": creation, "burst": burst, "inside": inside}
for name in sys.argv[1:] or parts:
    parts[name]()
