#!/usr/bin/env bash
# usage: tests/lint.sh BUILD [BASE]   clang-format and clang-tidy on the files that changed since BASE (default: the
# last commit and what is not committed).
set -euo pipefail
build=$1
base=${2:-$(git rev-parse --verify -q HEAD~1 || git hash-object -t tree /dev/null)}
mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base"; git ls-files -o --exclude-standard; } | sort -u |
  grep -E '^(core|partition|kernels|comm|kvstore|runtime|cluster|bench|tests)/.*\.(h|cpp|inl|cu|cuh)$' || true)
[ ${#changed[@]} -gt 0 ] || { echo "lint: no source file changed since $base"; exit 0; }
echo "lint: clang-format on ${#changed[@]} files"
clang-format --dry-run -Werror "${changed[@]}"
# What this build does not compile (the CUDA backend without nvcc) it cannot check.
mapfile -t sources < <(printf '%s\n' "${changed[@]}" | grep '\.cpp$' | while read -r file; do
  grep -q "\"file\": \".*/$file\"" "$build/compile_commands.json" && echo "$file"; done || true)
[ ${#sources[@]} -gt 0 ] || exit 0
# clang has no -fopenmp runtime here and does not need one: pragmas are ignored.
echo "lint: clang-tidy on ${#sources[@]} files"
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 \
  clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unknown-pragmas 2> "$build/lint.log" ||
  { cat "$build/lint.log"; exit 1; }
echo "lint: clean"
