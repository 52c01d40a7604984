"""`ringmark plan` and `ringmark calibrate` as a user runs them: a plan beside the prefill it plans, and what is refused.

usage: plan.py RINGMARK
"""
import json
import os
import subprocess
import sys
import tempfile

RINGMARK = sys.argv[1]
LAYER = ["--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--topk", "8"]


def run(arguments, code=0, error=""):
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    shown = f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {shown}"
    if code != 0:
        line = done.stderr.strip().splitlines()[-1]
        assert error in line, f"{error!r} is not in {line!r}"
    return done.stdout


def memory_lines(text):
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("memory of rank 0")) + 1
    end = next(i for i, line in enumerate(lines) if line.startswith("total "))
    return lines[begin:end + 1]


def check_against_prefill(folder, profile, ranks, more):
    plan_file, report_file = f"{folder}/plan.json", f"{folder}/report.json"
    common = LAYER + ["--memory-gib", "2", "--threads", "1"] + more
    planned = run([RINGMARK, "plan", "--tokens", "32k", "--nodes", "1", "--ranks-per-node", str(ranks), "--profile",
                   profile, "--json", plan_file] + common)
    ran = run(["mpirun", "--oversubscribe", "-n", str(ranks), RINGMARK, "prefill", "--planted", "32k", "--quiet",
               "--memory-plan", "--json", report_file] + common)
    assert memory_lines(planned) == memory_lines(ran), f"{planned}\n{ran}"
    with open(plan_file) as plan_json, open(report_file) as report_json:
        plan, report = json.load(plan_json), json.load(report_json)
    assert plan["merge"] == report["merge"]
    assert plan["bytes_ring"] == report["bytes_ring"]
    assert len(plan["examined"]) == ranks

    def of_all(part):
        return sum(rank[part]["bytes_inside"] + rank[part]["bytes_outside"] for rank in plan["examined"])

    # Under `scores` the records of the chosen chunks are counted there as merged and here as chosen.
    if plan["merge"] == "landmarks":
        assert of_all("merge") == report["bytes_merged"], (of_all("merge"), report["bytes_merged"])
        fetched, expected = report["bytes_fetched"], of_all("window_blocks") + of_all("chosen_blocks")
    else:
        fetched = report["bytes_fetched"] + report["bytes_merged"]
        expected = of_all("window_blocks") + of_all("chosen_blocks") + of_all("merge")
    assert abs(expected / fetched - 1) < 0.2, (expected, fetched)
    print(f"{ranks} ranks {more}: fetched {fetched}, expected {100 * (expected / fetched - 1):+.1f}%")


def check_refusals(folder, profile):
    plan = [RINGMARK, "plan"]
    run(plan, 2, "no --tokens N given")
    run(plan + ["--tokens", "0"], 2, "--tokens = 0 is not a whole number in [1,")
    run(plan + ["--tokens", "1k", "--heads", "3", "--kv-heads", "2"], 2, "heads = 3 is not a multiple of kv-heads = 2")
    run(plan + ["--tokens", "1k", "--profile", "h100"], 2, "profile = h100 is no file and no shipped profile")
    run(plan + ["--tokens", "1k", "--nodez", "2"], 2, "did you mean")
    run(plan + ["--tokens", "1k", "--policy", "nsa"], 2, "nsa cannot be planned")
    run(plan + ["--tokens", "1k", "--nodes", "60000", "--ranks-per-node", "8"], 2, "is above 65536 ranks")
    run(plan + ["--tokens", "1k", "--union-ratio", "2", "--topics", "3"], 2, "does not go with --union-ratio")
    run(plan + ["--tokens", "1k", "--profile", profile, "--nodes", "2"], 2, "has no link fabric")
    run(plan + ["--tokens", "1m", "--memory-gib", "0.5"], 3, "GiB, its limit is 0.50 GiB")
    with open(f"{folder}/bad.json", "w") as bad:
        bad.write(open(profile).read().replace('"threads": 1', '"threads": 0'))
    run(plan + ["--tokens", "1k", "--profile", f"{folder}/bad.json"], 2, "threads = 0 is not a whole number in [1,")
    run(plan + ["--tokens", "1k", "--json", f"{folder}/none/plan.json"], 2, "plan.json")
    run([RINGMARK, "calibrate", "--tokens", "100"], 2, "--tokens = 100 is not a whole number in [4096,")
    run([RINGMARK, "calibrate", "--heads", "3", "--kv-heads", "2"], 2, "is not a multiple")


def check_calibration(profile):
    with open(profile) as file:
        measured = json.load(file)
    assert measured["backend"] == "cpu" and set(measured["links"]) == {"host"}
    for stage in ("window", "score", "attend", "dense"):
        assert any(measured["compute"][stage].values()), stage
    assert measured["links"]["host"]["source"].startswith("measured")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        profile = f"{folder}/machine.json"
        print(run(["mpirun", "--oversubscribe", "-n", "2", RINGMARK, "calibrate", "--tokens", "4k", "--repeats", "1",
                   "--output", profile]))
        check_calibration(profile)
        for ranks in (2, 4):
            check_against_prefill(folder, profile, ranks, [])
        check_against_prefill(folder, profile, 4, ["--balance", "contiguous", "--window", "300", "--sinks", "70"])
        check_against_prefill(folder, profile, 2, ["--merge", "scores"])
        check_refusals(folder, profile)
        run([RINGMARK, "plan", "--tokens", "16m", "--nodes", "1024", "--ranks-per-node", "1", "--heads", "32",
             "--kv-heads", "8", "--head-dim", "128"])


main()
