#!/usr/bin/env python3
"""usage: write_order.py LOG FOLDER NAME...   Checks a log of tests/support/record_writes.c. Every file under FOLDER
that appeared by a rename was synced after its last write and before the rename, and its folder after the rename; that
of a shard before the manifest is renamed. A folder that was made was synced into the folder above it. Every NAME, the
end of a path, is a file that appeared so."""
import os
import sys


def synced_between(log, path, begin, end):
    """Whether a sync of the path began after `begin` and was over before `end`."""
    events = log[begin:end]
    return ["syncing", path] in events and ["synced", path] in events[events.index(["syncing", path]):]


def first(log, begin, kind, ending):
    """Place of the first event of a kind behind `begin` whose last path ends so; the end of the log without one."""
    return next((n for n in range(begin, len(log)) if log[n][0] == kind and log[n][-1].endswith(ending)), len(log))


def faults_of_rename(log, at):
    old, new = log[at][1:]
    writes = [n for n in range(at) if log[n] == ["wrote", old]]
    done = first(log, at, "renamed", new)
    limit = first(log, done, "renaming", "manifest.json") if "shard-" in new else len(log)
    if not writes:
        yield f"{new}: no write to {old} was seen"
    elif not synced_between(log, old, writes[-1] + 1, at):
        yield f"{new}: renamed before what was written to {old} was on disk"
    if not synced_between(log, os.path.dirname(new), done + 1, limit):
        yield f"{new}: its name was not on disk when it had to be"


def main(path, folder, *names):
    log = [line.split() for line in open(path)]
    folder = os.path.realpath(folder)
    renames = [n for n, event in enumerate(log) if event[0] == "renaming" and event[2].startswith(folder)]
    faults = [fault for n in renames for fault in faults_of_rename(log, n)]
    for n, (kind, made, *_) in enumerate(log):
        if kind != "made" or not made.startswith(folder):
            continue
        if not synced_between(log, os.path.dirname(made), n + 1, len(log)):
            faults.append(f"{made}: the folder above it was not synced")
    for name in names:
        if not any(log[n][2].endswith(name) for n in renames):
            faults.append(f"{name}: did not appear by a rename")
    print("".join(fault + "\n" for fault in faults), end="")
    return 1 if faults else 0


sys.exit(main(*sys.argv[1:]))
