#!/usr/bin/env bash
# Arrows of the house point down: no folder may include one that stands above it, and comm and kernels, which share a
# floor, not each other.
set -euo pipefail
cd "$(dirname "$0")/.."
floor() {
  case "$1" in
    core) echo 0 ;; partition) echo 1 ;; kernels | comm) echo 2 ;; kvstore) echo 3 ;; runtime) echo 4 ;; *) echo 5 ;;
  esac
}
bad=0
for folder in core partition kernels comm kvstore runtime; do
  while IFS=: read -r file line; do
    target=$(sed -E 's/.*"([a-z]+)\/.*/\1/' <<< "$line")
    if [ "$(floor "$target")" -gt "$(floor $folder)" ] ||
      { [ "$(floor "$target")" -eq "$(floor $folder)" ] && [ "$target" != $folder ]; }; then
      echo "$file includes $target/"
      bad=1
    fi
  done < <(grep -rHoE '#include "(core|partition|kernels|comm|kvstore|runtime|cluster|bench|tests)/[^"]+"' \
    --include='*.h' --include='*.cpp' --include='*.inl' $folder || true)
done
# The same among the rooms of cluster, lowest first.
room_floor() {
  case "$1" in
    options) echo 0 ;; launch | telemetry) echo 1 ;; job) echo 2 ;; prefill) echo 3 ;;
    decode | backward | inspect | planning | doctor) echo 4 ;; simulation | scaling) echo 5 ;;
    *) echo "tests/layering.sh knows no room cluster/$1" >&2; echo 9 ;;
  esac
}
for folder in cluster/*/; do
  room=$(basename "$folder")
  while IFS=: read -r file line; do
    target=$(sed -E 's|.*"cluster/([a-z]+)/.*|\1|' <<< "$line")
    if [ "$target" != "$room" ] && [ "$(room_floor "$target")" -ge "$(room_floor "$room")" ]; then
      echo "$file includes cluster/$target/"
      bad=1
    fi
  done < <(grep -rHoE '#include "cluster/[^"]+"' --include='*.h' --include='*.cpp' "$folder" || true)
done
exit $bad
