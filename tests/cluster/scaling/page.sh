#!/usr/bin/env bash
# usage: page.sh PAGE FIGURE...   opens a report in Chromium: its tables are there, and each figure is drawn (a box of some
# size, and lines in it).
set -euo pipefail
page=$(realpath "$1")
figures=("${@:2}")
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
# What a reader's eyes do: sizes are known only once it is laid out.
sed 's|</body>|<script>document.body.setAttribute("data-drawn", [...document.querySelectorAll("figure svg")].map(s => { const b = s.getBoundingClientRect(); return s.closest("figure").id + "=" + (b.width > 300 \&\& b.height > 100 \&\& s.querySelectorAll("path").length > 5); }).join(" "))</script></body>|' \
  "$page" > "$folder/page.html"
chromium --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" --virtual-time-budget=5000 --dump-dom \
  "file://$folder/page.html" > "$folder/dom" 2> "$folder/err" || { cat "$folder/err"; exit 1; }
for id in results-strong against-ring; do
  grep -q "<table id=\"$id\">" "$folder/dom" || { echo "FAIL: no table $id"; exit 1; }
done
for name in "${figures[@]}"; do
  grep -o 'data-drawn="[^"]*"' "$folder/dom" | grep -q "figure-$name=true" || { echo "FAIL: figure $name is not drawn"; exit 1; }
  [ -s "$(dirname "$page")/plots/$name.png" ] || { echo "FAIL: no $name.png"; exit 1; }
done
! grep -qE '(src|href)="https?:' "$folder/dom" || { echo "FAIL: the page needs the network"; exit 1; }
