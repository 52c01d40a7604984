"""telemetry.py log FILE... | trace FILE RANKS | metrics FILE EXIT_CODE | lines FILE LEVEL

Strict readers of what a run leaves: each checks the whole file and ends with an error that says what is wrong where.
"""
import json
import re
import sys
from datetime import datetime

LEVELS = ["debug", "info", "warning", "error"]
# Fields of an event behind ts, level, rank, host, pid, event: name -> type; those in brackets may be missing.
STEP = {"[layer]": int, "[stage]": str, "[step]": dict}
WAIT = {**STEP, "wait": str, "peers": list, "waited_seconds": float, "[bytes_outstanding]": int}
EVENTS = {
    "job_start": {"version": str, "command": str, "policy": str, "ranks": int, "host_ranks": int, "layer": int,
                  "options": dict, "[hosts]": list},
    "transport": {"transport": str, "why": str},
    "stage_begin": {"[layer]": int, "stage": str, "[step]": dict},
    "stage_end": {"[layer]": int, "stage": str, "[step]": dict, "lane": str, "seconds": float, "received_bytes": int},
    "stage_total": {"stage": str, "lane": str, "seconds": float, "received_bytes": int, "spans": int},
    "job_end": {"exit_code": int, "seconds": float, "received_bytes": int, "wait_seconds": float,
                "peak_memory_bytes": int},
    "failure": {"exit_code": int, "error": str, **{f"[{k.strip('[]')}]": v for k, v in WAIT.items()}},
    "checkpointed": {"exit_code": int, "error": str},
    "checkpoint": {"[path]": str, "[folder]": str, "[generation]": int, "rows": int},
    "snapshot": {"folder": str, "generation": int, "[rows]": int},
    "resumed": {"rows": int},
    "starts_over": {"why": str},
    "signal": {"signal": str, **{f"[{k.strip('[]')}]": v for k, v in WAIT.items()}},
    "hang": {**WAIT, "[peer_hosts]": list, "since": str},
    "hang_over": {**WAIT, "[peer_hosts]": list, "since": str},
}


def fields_are(where, given, wanted):
    for name, kind in wanted.items():
        bare = name.strip("[]")
        if bare not in given:
            assert name != bare, f"{where}: no field {bare}"
            continue
        value = given[bare]
        is_kind = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        assert is_kind and not isinstance(value, bool), f"{where}: {bare} = {value!r} is no {kind.__name__}"
    known = {name.strip("[]") for name in wanted}
    assert set(given) <= known, f"{where}: unknown fields {set(given) - known}"


def read_log(path):
    events = []
    text = open(path).read()
    assert text.endswith("\n"), f"{path}: the last line is torn"
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        event = json.loads(line)
        assert list(event)[:6] == ["ts", "level", "rank", "host", "pid", "event"], f"{where}: order of fields"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["ts"]), f"{where}: ts"
        datetime.strptime(event["ts"], "%Y-%m-%dT%H:%M:%S.%fZ")
        assert event["level"] in LEVELS, f"{where}: level"
        own = dict(list(event.items())[6:])
        assert event["event"] in EVENTS, f"{where}: unknown event {event['event']}"
        fields_are(where, own, EVENTS[event["event"]])
        step = own.get("step")
        if step is not None:
            fields_are(where, step, {"unit": str, "number": int})
        events.append(event)
    return events


def check_log(paths):
    for path in paths:
        events = read_log(path)
        rank = int(re.search(r"log\.(\d+)\.jsonl$", path).group(1))
        assert {event["rank"] for event in events} == {rank}, f"{path}: rank"
        assert events[0]["event"] == "job_start" and events[-1]["event"] == "job_end", f"{path}: begin and end"
        assert ("hosts" in events[0]) == (rank == 0), f"{path}: hosts"
        assert [e["ts"] for e in events] == sorted(e["ts"] for e in events), f"{path}: order"
        begun = [e["stage"] for e in events if e["event"] == "stage_begin"]
        assert len(begun) == len(set(begun)) and begun, f"{path}: at info a stage begins once: {begun}"
        ended = [e["stage"] for e in events if e["event"] == "stage_end"]
        assert sorted(begun) == sorted(ended), f"{path}: begun {begun}, ended {ended}"
        totals = {e["stage"]: e for e in events if e["event"] == "stage_total"}
        assert set(totals) == set(begun), f"{path}: totals"
        for e in events:
            if e["event"] == "stage_end":
                total = totals[e["stage"]]
                assert e["seconds"] <= total["seconds"] + 1e-9 and e["received_bytes"] <= total["received_bytes"]
    print(f"{len(paths)} logs, {sum(len(read_log(p)) for p in paths)} lines")


def check_nesting(where, spans):
    open_spans = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_spans and open_spans[-1] <= begin + 0.002:
            open_spans.pop()
        assert not open_spans or end <= open_spans[-1] + 0.002, f"{where}: a span ends behind the one around it"
        open_spans.append(end)


def check_trace(path, ranks):
    trace = json.load(open(path))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    clocks = trace["otherData"]["clocks"]
    assert [clock["rank"] for clock in clocks] == list(range(ranks))
    for clock in clocks:
        fields_are("clock", clock, {"rank": int, "offset_us_at_begin": float, "offset_us_at_end": float,
                                    "drift_us_per_second": float, "uncertainty_us": float})
        assert clock["uncertainty_us"] >= 0
    wanted = {
        "X": {"name": str, "cat": str, "ph": str, "pid": int, "tid": int, "ts": float, "dur": float},
        "M": {"name": str, "ph": str, "pid": int, "[tid]": int, "args": dict},
        "b": {"name": str, "cat": str, "id": str, "ph": str, "pid": int, "tid": int, "ts": float, "args": dict},
        "e": {"name": str, "cat": str, "id": str, "ph": str, "pid": int, "tid": int, "ts": float},
        "s": {"name": str, "cat": str, "id": str, "ph": str, "pid": int, "tid": int, "ts": float},
        "f": {"name": str, "cat": str, "id": str, "ph": str, "bp": str, "pid": int, "tid": int, "ts": float},
    }
    spans, pairs, names, threads = {}, {}, {}, set()
    for number, event in enumerate(trace["traceEvents"]):
        where = f"event {number}"
        kind = event["ph"]
        fields_are(where, event, wanted[kind])
        assert 0 <= event["pid"] < ranks, f"{where}: pid"
        if kind == "M":
            if event["name"] == "process_name":
                names[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                threads.add((event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0, f"{where}: ts"
        if kind == "X":
            assert event["dur"] >= 0, f"{where}: dur"
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            family = "async" if kind in "be" else "flow"
            pair = pairs.setdefault((family, event["cat"], event["id"]), {})
            assert kind not in pair, f"{where}: a second {kind} of {event['id']}"
            pair[kind] = event
    for lane, of_lane in spans.items():
        assert lane in threads, f"{lane} has no name"
        check_nesting(lane, of_lane)
    assert set(names) == set(range(ranks)) and set(pid for pid, _ in spans) == set(range(ranks))
    for rank, name in names.items():
        assert name.startswith(f"rank {rank} @ "), name
    flows = 0
    for (family, _, key), pair in pairs.items():
        begin, end = ("b", "e") if family == "async" else ("s", "f")
        assert set(pair) == {begin, end}, f"{key}: {set(pair)}"
        assert pair[begin]["ts"] <= pair[end]["ts"], key
        if family == "flow":
            flows += 1
            assert pair[begin]["pid"] != pair[end]["pid"], f"{key}: from a rank to itself"
    assert len(pairs) == 2 * flows
    assert min(begin for of_lane in spans.values() for begin, _ in of_lane) == 0 or flows
    print(f"{sum(map(len, spans.values()))} spans, {flows} reads")
    return flows


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'


def check_metrics(path, exit_code):
    text = open(path).read()
    assert text.endswith("\n")
    types, helps, samples, last = {}, set(), {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = re.fullmatch(rf"# HELP ({NAME}) \S.*", line).group(1)
            assert name not in helps, f"a second HELP of {name}"
            helps.add(name)
            last = name
            continue
        if line.startswith("# TYPE "):
            name, kind = re.fullmatch(rf"# TYPE ({NAME}) (gauge|counter)", line).groups()
            assert name == last and name not in types, line
            types[name] = kind
            continue
        match = re.fullmatch(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)", line)
        assert match, f"no sample: {line}"
        name = match.group(1)
        assert name == last and name in types, f"{name} stands outside its family"
        labels = tuple(re.findall(LABEL, match.group(2)))
        assert len(labels) == len(dict(labels)), f"a label twice: {line}"
        assert (name, labels) not in samples, f"a sample twice: {line}"
        value = samples[name, labels] = float(line.rsplit(" ", 1)[1])
        assert value == value, line
        assert {"rank", "command", "policy"} <= set(dict(labels)), line
    for name, kind in types.items():
        assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
        assert name.startswith("ringmark_") and any(key[0] == name for key in samples), name
        if name.endswith("_ratio"):
            assert all(0 <= v <= 1 for (n, _), v in samples.items() if n == name), name
    value = {name: v for (name, _), v in samples.items()}
    assert value["ringmark_up"] == 0 and value["ringmark_exit_code"] == exit_code, value
    assert value["ringmark_start_time_seconds"] <= value["ringmark_end_time_seconds"]
    assert 0 < value["ringmark_resident_memory_bytes"] <= value["ringmark_peak_memory_bytes"]
    print(f"{len(samples)} samples of {len(types)} metrics")


def check_levels(path, level):
    least = LEVELS.index(level)
    events = read_log(path)
    assert all(LEVELS.index(event["level"]) >= least for event in events)
    print(len(events))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "log":
        check_log(rest)
    elif kind == "trace":
        flows = check_trace(rest[0], int(rest[1]))
        assert len(rest) < 3 or flows > 0, "no block was read from a peer"
    elif kind == "metrics":
        check_metrics(rest[0], int(rest[1]))
    else:
        check_levels(rest[0], rest[1])
