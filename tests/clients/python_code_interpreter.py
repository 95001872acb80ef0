"""E2B's code interpreter SDK for Python, unchanged, at Berth. Wants E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL."""

import asyncio
import base64
import threading
import time

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b_code_interpreter.charts import ChartType


def fails(kind, what):
    try:
        what()
    except kind as error:
        return error
    raise AssertionError(f"{what} did not fail with {kind}")


def results(box):
    begun = box.run_code("1 + 1")
    assert begun.text == "2" and begun.execution_count == 1, begun
    assert box.run_code("x = 20; y = 'ü'").results == []
    again = box.run_code("print('out', y)\nimport sys\nprint('err', file=sys.stderr)\nx + 1")
    assert again.text == "21" and again.execution_count == 3, again
    assert again.logs.stdout == ["out ü\n"] and again.logs.stderr == ["err\n"], again.logs
    assert box.run_code("'a text'").text == "a text"
    assert box.run_code("{'a': [1, 2.5, None]}").results[0].json == {"a": [1, 2.5, None]}
    shown = box.run_code("from IPython.display import HTML, Markdown, display\ndisplay(HTML('<b>b</b>'))\nMarkdown('# m')")
    assert [(one.html, one.markdown, one.is_main_result) for one in shown.results] == [
        ("<b>b</b>", None, False),
        (None, "# m", True),
    ], shown.results
    assert box.run_code("!echo from a shell").logs.stdout[0].strip() == "from a shell"
    assert box.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'waited'").text == "waited"


def errors(box):
    error = box.run_code("def f():\n    return 1 / 0\nf()").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero"), error
    assert "return 1 / 0" in error.traceback, error.traceback
    assert box.run_code("a b").error.name == "SyntaxError"
    died = box.run_code("print('last words', flush=True)\nimport os\nos._exit(1)")
    assert died.logs.stdout == ["last words\n"] and died.error.name == "UnexpectedEndOfExecution", died
    assert box.run_code("2 + 2").text == "4"


def streams(box):
    came = []
    code = "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.5)"
    box.run_code(code, on_stdout=lambda message: came.append((message.line, time.monotonic())))
    assert "".join(line for line, _ in came) == "0\n1\n2\n", came
    assert came[-1][1] - came[0][1] > 0.5, came
    seen = []
    box.run_code("display('a'); 1 / 0", on_result=seen.append, on_error=seen.append)
    assert [type(one).__name__ for one in seen] == ["Result", "ExecutionError"], seen
    long = box.run_code("print('z' * 1_000_000)")
    assert sum(map(len, long.logs.stdout)) == 1_000_001


def variables(box):
    given = box.run_code("import os; os.environ['OF_BOX'], os.environ['OF_RUN']", envs={"OF_RUN": "r"})
    assert given.text == "('b', 'r')", given
    assert box.run_code("os.environ.get('OF_RUN')").text is None
    assert box.run_code("!echo $OF_BOX").logs.stdout[0].strip() == "b"
    assert box.commands.run("stat -c '%U %a' /run/berth/environment").stdout.strip() == "user 600"
    assert box.run_code("process.env.OF_BOX + process.env.OF_RUN", language="js", envs={"OF_RUN": "r"}).text == "br"
    assert box.run_code("typeof process.env.OF_RUN", language="js").text == "undefined"


def contexts(box):
    first = box.list_code_contexts()
    assert {"python", "javascript"} <= {one.language for one in first}, first
    other = box.create_code_context(cwd="/tmp", language="python")
    assert (other.cwd, other.language) == ("/tmp", "python"), other
    assert box.list_code_contexts()[-1].id == other.id
    assert box.run_code("import os; only_here = 5; os.getcwd()", context=other).text == "/tmp"
    assert box.run_code("import os; os.getcwd()").text == "/home/user"
    assert box.run_code("only_here").error.name == "NameError"
    assert box.run_code("only_here", context=other).text == "5"
    box.restart_code_context(other)
    assert box.run_code("only_here", context=other).error.value == "name 'only_here' is not defined"
    box.remove_code_context(other)
    assert other.id not in [one.id for one in box.list_code_contexts()]
    fails(NotFoundException, lambda: box.run_code("1", context=other))
    assert "javascript" in str(fails(SandboxException, lambda: box.run_code("1", language="r")))
    assert "/nowhere" in str(fails(SandboxException, lambda: box.create_code_context(cwd="/nowhere")))


def queue(box):
    began, answers = time.monotonic(), []
    code = "import time; time.sleep(1); len('abc')"
    threads = [threading.Thread(target=lambda: answers.append(box.run_code(code).text)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["3"] * 3 and time.monotonic() - began > 3, answers


def interrupts(box):
    box.run_code("kept = 7")
    for code in ("import time; time.sleep(300)", "while True: print('x' * 1000)", "import asyncio; await asyncio.sleep(300)"):
        fails(TimeoutException, lambda: box.run_code(code, timeout=2))
        assert box.run_code("kept", timeout=60).text == "7", code


def figures(box):
    def chart(code):
        shown = box.run_code(f"import matplotlib.pyplot as plt\n{code}\nplt.show()")
        assert shown.error is None, shown.error
        assert base64.b64decode(shown.results[0].png).startswith(b"\x89PNG"), shown
        return shown.results[0].chart

    line = chart("plt.plot([1, 2, 3], [4, 5, 6], label='l'); plt.title('T'); plt.xlabel('Time (s)'); plt.ylabel('V')")
    assert (line.type, line.title) == (ChartType.LINE, "T"), line.to_dict()
    assert (line.x_label, line.x_unit, line.y_label, line.y_unit) == ("Time (s)", "s", "V", None), line.to_dict()
    assert (line.x_scale, line.elements[0].label) == ("linear", "l"), line.to_dict()
    assert line.elements[0].points == [(1, 4), (2, 5), (3, 6)], line.to_dict()
    dates = chart("import datetime\nplt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)], [10, 100]); plt.yscale('log')")
    assert (dates.x_scale, dates.y_scale) == ("datetime", "log"), dates.to_dict()
    assert dates.elements[0].points[0] == ("2024-01-01", 10), dates.to_dict()
    scatter = chart("plt.scatter([1, 2], [3, 4], label='s'); plt.grid(True)")
    assert (scatter.type, scatter.elements[0].points) == (ChartType.SCATTER, [(1, 3), (2, 4)]), scatter.to_dict()
    bars = chart("plt.bar(['a', 'b'], [3, 5], label='g')")
    assert [(one.label, one.group, one.value) for one in bars.elements] == [("a", "g", 3), ("b", "g", 5)], bars.to_dict()
    lying = chart("plt.barh(['a', 'b'], [3, 5]); plt.xlabel('n')")
    assert [(one.label, one.value) for one in lying.elements] == [("a", 3), ("b", 5)], lying.to_dict()
    assert lying.y_label == "n", lying.to_dict()
    pie = chart("plt.pie([1, 3], labels=['q', 'r'])")
    assert [(one.label, round(one.angle)) for one in pie.elements] == [("q", 90), ("r", 270)], pie.to_dict()
    for options in ("", ", patch_artist=True", ", vert=False"):
        box_chart = chart(f"plt.boxplot([[1, 2, 3, 4, 50], [2, 4, 6, 8, 10]]{options})")
        first = box_chart.elements[0]
        found = (first.label, first.min, first.first_quartile, first.median, first.third_quartile, first.max, first.outliers)
        assert found == ("1", 1, 2, 3, 4, 4, [50]), (options, box_chart.to_dict())
    several = chart("fig, (a, b) = plt.subplots(1, 2); a.plot([1], [2]); b.bar(['k'], [1]); fig.suptitle('S')")
    assert (several.type, several.title) == (ChartType.SUPERCHART, "S"), several.to_dict()
    assert [one.type for one in several.elements] == [ChartType.LINE, ChartType.BAR], several.to_dict()
    assert chart("plt.imshow([[1, 2], [3, 4]])").type == ChartType.UNKNOWN


def data(box):
    table = box.run_code("import pandas as pd\npd.DataFrame({'a': [1, None], 't': pd.to_datetime(['2024-01-01', None])})")
    assert table.results[0].data == {"a": [1.0, None], "t": ["2024-01-01T00:00:00", None]}, table.results[0].data
    assert "<table" in table.results[0].html
    saved = box.run_code("from PIL import Image\nImage.new('RGB', (4, 4)).save('a.png')")
    assert base64.b64decode(saved.results[0].png).startswith(b"\x89PNG"), saved
    # What came with the image, and what its user may add to it.
    assert box.run_code("import scipy, sklearn, seaborn, openpyxl, requests, bs4, sympy").error is None


def javascript(box):
    assert box.run_code("const n = 1, {m} = {m: 2}; n + m", language="javascript").text == "3"
    assert box.run_code("const n = 5; await Promise.resolve(n + m)", language="js").text == "7"
    logged = box.run_code("console.log('out'); console.error('err')", language="js")
    assert (logged.logs.stdout, logged.logs.stderr) == (["out\n"], ["err\n"]), logged
    error = box.run_code("\nthrow new TypeError('bad')", language="js").error
    assert (error.name, error.value) == ("TypeError", "bad") and ":2:" in error.traceback, error
    assert box.run_code("import { sep } from 'path'; function f() { return sep }\nf()", language="js").text == "/"
    assert box.run_code("const a: number = 4; interface I { b: string }; a", language="typescript").text == "4"
    fails(TimeoutException, lambda: box.run_code("while (true) {}", language="js", timeout=2))
    assert box.run_code("n", language="js", timeout=60).text == "5"


def apart():
    """What two sandboxes share is no random number."""
    code = "import random, uuid, numpy\n(random.random(), numpy.random.rand(), str(uuid.uuid4()))"
    drawn = []
    for _ in range(2):
        with Sandbox.create() as box:
            drawn.append(box.run_code(code).text)
    assert drawn[0] != drawn[1] and not set(drawn[0].strip("()").split(", ")) & set(drawn[1].strip("()").split(", ")), drawn


async def asynchronous():
    box = await AsyncSandbox.create()
    context = await box.create_code_context()
    there, here = await asyncio.gather(box.run_code("1", context=context), box.run_code("2"))
    assert (there.text, here.text) == ("1", "2")
    await box.kill()


def main():
    box = Sandbox.create(timeout=600, envs={"OF_BOX": "b"})
    try:
        for part in (results, errors, streams, variables, contexts, queue, interrupts, figures, data, javascript):
            began = time.monotonic()
            part(box)
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    finally:
        box.kill()
    apart()
    asyncio.run(asynchronous())


if __name__ == "__main__":
    main()
