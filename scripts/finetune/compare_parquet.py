"""Compares the records of Parquet files, as pyarrow and the library datasets write them, with the same records as JSON Lines.

    compare_parquet.py TINDERBOX RUN WORK [COUNT]

RUN has a chat template. COUNT (100) data sets are drawn, of each form; the tokens of all records must be equal. Then
300,000 records, with the peak memory of `data preview`.
"""

import datetime
import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

tinderbox, run, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
count = int(sys.argv[4]) if len(sys.argv) > 4 else 100
work.mkdir(parents=True, exist_ok=True)
draw = random.Random(1)
WORDS = ["a", "seat", "Hamlet", "é", "\U0001f525", "\n", '"', "\\", " ", "longer " * 40]


def text():
    return "".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 12)))


def maybe(value):
    return value if draw.random() < 0.7 else None


def said(n):
    return [{"role": role, "content": text()} for _ in range(n) for role in ("user", "assistant")]


FORMS = {
    "messages": lambda: {"messages": said(draw.randrange(1, 4)), "score": maybe(draw.random())},
    "calls": lambda: {
        "messages": [
            {"role": "user", "content": text(), "tool_calls": None},
            {"role": "assistant", "content": text(), "tool_calls": maybe([{"type": "function", "function": {"name": "book", "arguments": '{"row": 4}'}}])},
        ],
        "tools": maybe(json.dumps([{"type": "function", "function": {"name": "book", "parameters": {"type": "object", "properties": {}}}}])),
    },
    "completion": lambda: {"prompt": text(), "completion": text(), "id": draw.randrange(2**40), "date": maybe(datetime.datetime(2026, 1, 1))},
    "alpaca": lambda: {"instruction": text(), "input": maybe(text()), "output": text(), "history": maybe([[text(), text()] for _ in range(draw.randrange(3))])},
    "sharegpt": lambda: {"conversations": [{"from": role, "value": text()} for role in ("human", "gpt")], "source": "x"},
    "preference": lambda: {"prompt": text(), "chosen": said(1)[1:], "rejected": said(1)[1:], "score_chosen": draw.random()},
}


def writers(records, path):
    """Ways to write the records."""
    table = pa.Table.from_pylist(records)
    plain = dict(compression=draw.choice(["snappy", "zstd", "gzip", "none"]), row_group_size=draw.choice([1, 3, 1000]))
    yield lambda: pq.write_table(table, path, **plain)
    yield lambda: pq.write_table(table, path, data_page_version="2.0", use_dictionary=draw.random() < 0.5, data_page_size=64, **plain)
    yield lambda: pq.write_table(table, path, version="1.0", use_compliant_nested_type=False, write_page_index=True, **plain)
    yield lambda: Dataset.from_list(records).to_parquet(path)
    yield lambda: table.to_pandas().to_parquet(path)


def preview(path, *more):
    command = [tinderbox, "data", "preview", run, "--data", path, "--json", "--n-shown", "100", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.replace(str(path), "")
    found = json.loads(done.stdout)
    found.pop("left_out", None)
    return found


def main():
    failures = n = 0
    for at in range(count):
        for form, make in FORMS.items():
            records = [make() for _ in range(draw.randrange(2, 40))]
            lines = work / "records.jsonl"
            lines.write_text("".join(json.dumps(record, default=str) + "\n" for record in records))
            expected, path = preview(lines), work / "records.parquet"
            ways = list(writers(records, path))
            way = at % len(ways)
            ways[way]()
            found = preview(path)
            n += 1
            if found != expected:
                failures += 1
                print(f"{form}, way {way}:\n  {str(found)[:600]}\n  {str(expected)[:600]}")
    print(f"{n} files, {failures} of them differ")
    block = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "word " * 900}]} for i in range(1000)]
    with pq.ParquetWriter(work / "large.parquet", pa.Table.from_pylist(block).schema, compression="zstd") as writer:
        for _ in range(300):
            writer.write_table(pa.Table.from_pylist(block))
    command = ["/usr/bin/time", "-f", "%M", tinderbox, "data", "preview", run, "--data", work / "large.parquet"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"300,000 records: peak memory {int(done.stderr.split()[-1]) // 1024} MiB")
    sys.exit(failures > 0)


main()
