"""What E2B's SDK for Python takes at Berth: a line of JSON for each figure. Wants E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL."""

import io
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

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


def inside():
    time.sleep(15)
    box = first()
    times = [timed(lambda: box.commands.run("true")) * 1e3 for _ in range(COMMANDS)]
    tell("commands.run", statistics.median(times), "ms", f"best {min(times):.1f} ms")
    times = [timed(lambda: box.files.exists("/tmp")) * 1e3 for _ in range(COMMANDS)]
    tell("files.exists", statistics.median(times), "ms", f"best {min(times):.1f} ms")
    content = io.BytesIO(b"\xa5" * FILE)
    tell("upload", FILE / 1e6 / timed(lambda: box.files.write("/home/user/big", content)), "MB/s")
    tell("download", FILE / 1e6 / timed(lambda: all(box.files.read("/home/user/big", format="stream"))), "MB/s")
    box.kill()


parts = {"creation": creation, "burst": burst, "inside": inside}
for name in sys.argv[1:] or parts:
    parts[name]()
