"""What a value of Python looks like to a client: the formats of its result."""

import base64
import datetime
import json
import math
import sys

from IPython.core.display_functions import display
from IPython.core.formatters import BaseFormatter, JSONFormatter
from traitlets import ObjectName, Unicode

import berth_charts

# A larger table is not sent as data, in cells: its HTML says what is in it.
LARGEST_TABLE = 200_000

# The client's name of each format; what else there is goes to `extra`.
NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


def result(formats, main):
    """The event that shows a value."""
    event = {"type": "result", "is_main_result": main, "extra": {}}
    for mime, value in formats.items():
        if value is None or value == {}:
            continue
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        if name := NAMES.get(mime):
            event[name] = plain(value)
        else:
            event["extra"][mime] = plain(value)
    text = event.get("text")
    # A string is shown as what it says.
    if text and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        event["text"] = text[1:-1]
    return event


def plain(value):
    """The same in JSON's types. JSON has no NaN: there it is null."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    # The scalars and arrays of NumPy.
    if not isinstance(value, (int, float)) and hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (datetime.date, datetime.time)):
        # A time that is none, as pandas has it, is equal to nothing.
        return value.isoformat() if value == value else None
    return str(value)


class Data(BaseFormatter):
    """The columns of a table of pandas."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, obj):
        # Whoever has a table has loaded pandas.
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(obj, pandas.DataFrame):
            return super().__call__(obj)
        return obj.to_dict(orient="list") if obj.size <= LARGEST_TABLE else None


class Chart(BaseFormatter):
    """What a figure of Matplotlib shows."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj):
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(obj, figure.Figure):
            return super().__call__(obj)
        try:
            return berth_charts.of_figure(obj)
        except Exception:
            # The image shows what could not be read.
            return None


class Json(JSONFormatter):
    """Lists and dictionaries, where JSON can say them."""

    def __call__(self, obj):
        if isinstance(obj, (list, dict)):
            try:
                return json.loads(json.dumps(obj, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                return None
        return super().__call__(obj)


def show_images():
    """Has an image of Pillow shown that a cell saves to a file, as programs for E2B expect."""
    try:
        from PIL.Image import Image
    except ImportError:
        # Nobody has one, then.
        return
    save = Image.save

    def shown(self, fp, *args, **options):
        if isinstance(fp, str):
            display(self)
        return save(self, fp, *args, **options)

    Image.save = shown


def register(formatter):
    """Adds them to what a shell makes of a value."""
    for kind in (Data, Chart, Json):
        made = kind(parent=formatter)
        formatter.formatters[made.format_type] = made
