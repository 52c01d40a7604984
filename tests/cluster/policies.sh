#!/usr/bin/env bash
# usage: policies.sh RINGMARK DOCS   `ringmark policies` as a user meets it: text and JSON both hold the table of
# docs/policies.md, cell by cell, no line is wider than 120 columns, and every policy has a section.
set -uo pipefail
ringmark=$1 docs=$2
. "$(dirname "$0")/expect.sh"

expect 2 'did you mean --json' "$ringmark" policies --jsn policies.json
expect 2 'nowhere/policies.json' "$ringmark" policies --json nowhere/policies.json
expect 2 'did you mean policies' "$ringmark" policys
"$ringmark" policies --help > out.txt 2> err.txt < /dev/null || fail "no help: $(cat err.txt)"
# Variables of other commands are no concern of this one.
RINGMARK_TOPK=4 "$ringmark" policies --json policies.json > table.txt 2> err.txt < /dev/null || fail "exit $?: $(cat err.txt)"
python3 - "$docs/policies.md" << 'P' || fail "the table is not that of docs/policies.md"
import json, re, sys

COLUMNS = ["name", "paper", "formula", "options", "exact", "test"]
document = open(sys.argv[1]).read()
lines = re.search(r"<!-- policies -->\n(.*?)<!-- /policies -->", document, re.S).group(1).strip().splitlines()
cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
assert cells[0] == COLUMNS and len(cells) > 10, cells[0]
documented = [[cell.strip("`") for cell in row] for row in cells[2:]]

policies = json.load(open("policies.json"))["policies"]
assert all(list(policy) == COLUMNS for policy in policies)

# A row of text goes on over lines without a name.
text = open("table.txt").read().splitlines()
assert max(map(len, text)) <= 120, max(text, key=len)
assert text[0].split() == COLUMNS, text[0]
starts = [text[0].index(column) for column in COLUMNS]
printed = []
for line in text[1:]:
    pieces = [line[begin:end].strip() for begin, end in zip(starts, starts[1:] + [None])]
    if pieces[0]:
        printed.append(pieces)
    else:
        printed[-1] = [f"{cell} {piece}".strip() for cell, piece in zip(printed[-1], pieces)]

for how, rows in (("json", [list(policy.values()) for policy in policies]), ("text", printed)):
    assert len(rows) == len(documented), (how, len(rows), len(documented))
    for row, wanted in zip(rows, documented):
        for column, found, expected in zip(COLUMNS, row, wanted):
            assert found == expected, (how, wanted[0], column, found, expected)
headings = {name for line in re.findall(r"^## (.*)$", document, re.M) for name in line.split(", ")}
for name, paper, formula, options, exact, test in documented:
    assert name in headings, f"no section {name}"
    assert 0 < len(formula) <= 60 and all((paper, options, exact, test)), name
P

[ $failures -eq 0 ] && echo "policies: all good"
exit $((failures > 0))
