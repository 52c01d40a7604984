# For scripts that run the binary as a user does: `. expect.sh` behind `set -uo pipefail`. Goes into a folder of its own,
# which the end of the script removes; `failures` counts what `fail` said.
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# expect CODE PATTERN COMMAND...: exit code, one line on stderr that matches, nothing on stdout.
expect() {
  local code=$1 pattern=$2 got
  shift 2
  "$@" > out.txt 2> err.txt < /dev/null
  got=$?
  [ $got -eq "$code" ] || fail "exit $got instead of $code: $* ($(head -c 300 err.txt))"
  [ "$(wc -l < err.txt)" -eq 1 ] || fail "$(wc -l < err.txt) lines instead of one: $*: $(head -c 500 err.txt)"
  grep -qE -- "$pattern" err.txt || fail "no '$pattern' in: $(head -c 300 err.txt)"
  [ ! -s out.txt ] || fail "output beside the error: $*"
}
