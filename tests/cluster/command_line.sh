#!/usr/bin/env bash
# usage: command_line.sh RINGMARK WRITE_MALFORMED_FILES TEST_DATA   the binary as a user meets it: help without MPI, bad
# input in one line with its exit code, nothing written half.
set -uo pipefail
ringmark=$1 write_malformed=$2 data=$3
. "$(dirname "$0")/expect.sh"

for words in --help "prefill --help" --version; do
  "$ringmark" $words > out.txt 2> err.txt || fail "$words exits $?"
  [ -s out.txt ] && [ ! -s err.txt ] || fail "$words does not print to stdout alone"
done

expect 2 'did you mean --topk' "$ringmark" prefill --input x --topkk 4
expect 2 'did you mean prefill' "$ringmark" prefil
expect 2 'input.*planted|planted.*input' "$ringmark" prefill
expect 2 'topk.*-1' "$ringmark" prefill --planted 1k --topk -1
expect 2 'policy.*best' "$ringmark" prefill --planted 1k --policy best
expect 2 'no-such-file' "$ringmark" prefill --input no-such-file.safetensors
expect 2 'RINGMARK_WINDOW = wide' env RINGMARK_WINDOW=wide "$ringmark" prefill --planted 1k
expect 2 'cu_seqlens.*900' "$ringmark" prefill --input "$data/layer.safetensors" --cu-seqlens 0,900
expect 3 'needs .* GiB, its limit is' "$ringmark" prefill --planted 1g --chunk 1024
expect 3 'needs .* GiB, its limit is' "$ringmark" prefill --planted 512g --policy window
expect 2 'chunk_size = 64 makes 16777217 chunks' "$ringmark" prefill --planted 1g
expect 3 'needs .* GiB, its limit is 0.25 GiB' "$ringmark" prefill --planted 1m --memory-gib 0.25
expect 2 'nowhere' "$ringmark" prefill --planted 1k --output nowhere/out.safetensors
expect 2 'nowhere/report.json' "$ringmark" prefill --planted 1k --json nowhere/report.json
expect 2 'log-dir = nowhere' "$ringmark" prefill --planted 1k --log-dir nowhere
# bugs.md 57: Slurm started four tasks that MPI does not see.
expect 3 '4.*1|1.*4' env SLURM_NTASKS=4 "$ringmark" prefill --planted 1k
# The same, as srun --mpi=none leaves the environment of a step.
expect 3 '2 tasks without PMIx.*srun --mpi=pmix' env SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 \
  "$ringmark" prefill --planted 1k

# bugs.md 59: each of the malformed files, one line with the path.
mkdir malformed && "$write_malformed" malformed || fail "cannot write the malformed files"
for file in malformed/*.safetensors; do expect 2 "$file" "$ringmark" prefill --input "$file"; done

# A good run: output and report; no temporary file left. A failed one leaves the old output as it was.
"$ringmark" prefill --planted 2k --output out.safetensors --topk-chunks --json report.json --digest > out.txt 2> err.txt ||
  fail "a planted run exits $?: $(cat err.txt)"
grep -q '^selection_digest [0-9a-f]\{16\}$' out.txt || fail "no digest line"
python3 - << 'P' || fail "the report lacks fields"
import json
report = json.load(open("report.json"))
names = """tokens ranks selection_digest seconds bytes_fetched bytes_ring union_ratio peak_memory_bytes needles_planted
needles_recovered transport merge balance backend""".split()
assert all(name in report for name in names), sorted(set(names) - set(report))
assert set(report["union_ratio"]) == {"16", "32", "64"} and report["tokens"] == 2048
assert report["needles_planted"] == report["needles_recovered"] > 0
P
# The trace of two ranks is one JSON file; the memory plan stands before the report.
mpirun --oversubscribe -n 2 "$ringmark" prefill --planted 2k --trace trace.json --memory-plan > out.txt 2> err.txt \
  < /dev/null || fail "a traced run exits $?: $(cat err.txt)"
grep -q '^blocks .* MiB$' out.txt && grep -q '^total .* MiB of .* MiB$' out.txt || fail "no memory plan"
python3 - << 'P' || fail "the trace is not what it should be"
import json
events = json.load(open("trace.json"))["traceEvents"]
spans = [event for event in events if event["ph"] == "X"]
assert {event["pid"] for event in spans} == {0, 1}
assert {"landmarks", "window", "select", "attend"} <= {event["name"] for event in spans}
assert all(event["dur"] >= 0 for event in spans)
P
expect 2 'nowhere/trace.json' "$ringmark" prefill --planted 1k --trace nowhere/trace.json
# Without a GPU, or in a build without CUDA, the line says which.
CUDA_VISIBLE_DEVICES= expect 3 'no CUDA|GPU|CUDA' "$ringmark" prefill --planted 1k --backend cuda

before=$(sha256sum out.safetensors)
expect 3 'GiB' "$ringmark" prefill --planted 1m --memory-gib 0.1 --output out.safetensors
[ "$before" = "$(sha256sum out.safetensors)" ] || fail "a failed run changed the old output"
[ -z "$(find . -name '*.tmp')" ] || fail "temporary files left: $(find . -name '*.tmp')"

# Under mpirun: the error once, by one rank, and its exit code.
mpirun --oversubscribe -n 3 "$ringmark" prefill --input malformed/000.safetensors > out.txt 2> err.txt < /dev/null
[ $? -eq 2 ] || fail "mpirun does not pass exit code 2 on"
[ "$(grep -c '^ringmark:' err.txt)" -eq 1 ] || fail "not one line under mpirun: $(grep '^ringmark:' err.txt)"

[ $failures -eq 0 ] && echo "command line: all good"
exit $((failures > 0))
