#!/usr/bin/env bash
# validate.sh RINGMARK PROFILE [RATES]: predicted against measured prefill on 1, 2 and 4 hosts of this machine. A host is a
# network namespace behind a link shaped to each of RATES (Mbit/s, "1000 200"), and shares the machine's cores. PROFILE
# is of `ringmark calibrate` on this machine. Prints a table of seconds and errors; exit code 1 when the mean error of
# time is above BAR (15) percent. Run it on a quiet machine. Root; needs iproute2 and python3.
# env: TOKENS (65536) REPEATS (3) BAR
set -euo pipefail
ringmark=$(realpath "$1") profile=$(realpath "$2") rates=${3:-"1000 200"}
tokens=${TOKENS:-65536} repeats=${REPEATS:-3} prefix=rmval$$ net=10.233.$((RANDOM % 200 + 20)) hosts=4
[ "$(id -u)" = 0 ] || { echo "validate.sh needs root: it makes network namespaces" >&2; exit 3; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
cleanup() {
  for n in $(seq $hosts); do ip netns del $prefix-n"$n" 2> /dev/null || true; done
  ip link del $prefix-b 2> /dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
ip link add $prefix-b type bridge
ip addr add $net.1/24 dev $prefix-b
ip link set $prefix-b up
for n in $(seq $hosts); do
  ip netns add $prefix-n"$n"
  ip link add $prefix-v"$n" type veth peer name eth0 netns $prefix-n"$n"
  ip link set $prefix-v"$n" master $prefix-b up
  ip -n $prefix-n"$n" link set lo up
  ip -n $prefix-n"$n" addr add $net.$((10 + n))/24 dev eth0
  ip -n $prefix-n"$n" link set eth0 up
done
# mpirun starts a daemon a host by this instead of ssh.
cat > "$work/enter" << X
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
n=\${1##*.}; shift
exec nsenter --net=/run/netns/$prefix-n\$((n - 10)) unshare --uts --mount --propagation private bash -c '
  hostname host'\$n'; mount -t tmpfs tmpfs /dev/shm; exec bash -c "\$*"' _ "\$@"
X
chmod 755 "$work/enter"
layer=(--heads 4 --kv-heads 2 --head-dim 64 --window 128 --topk 16)
for rate in $rates; do
  for n in $(seq $hosts); do
    for end in "ip netns exec $prefix-n$n tc qdisc replace dev eth0" "tc qdisc replace dev $prefix-v$n"; do
      $end root tbf rate "${rate}mbit" burst 64kb latency 200ms
    done
  done
  for count in 1 2 4; do
    list=$(seq -s, -f "$net.%g:1" 11 $((10 + count)))
    for repeat in $(seq "$repeats"); do
      mpirun -n "$count" --host "$list" --bind-to none --mca plm_rsh_agent "$work/enter" --mca btl self,tcp --mca pml ob1 \
        --mca btl_tcp_if_include $net.0/24 --mca oob_tcp_if_include $net.0/24 --mca mpi_yield_when_idle 1 \
        "$ringmark" prefill --planted "$tokens" "${layer[@]}" --threads 1 --transport request --quiet \
        --json "$work/measured.$rate.$count.$repeat.json" < /dev/null > /dev/null
    done
  done
  "$ringmark" simulate --tokens "$tokens" "${layer[@]}" --nodes 1,2,4 --ranks-per-node 1 --topology shared \
    --profile "$profile" --rate-gbit "$(python3 -c "print($rate / 1000)")" --json "$work/predicted.$rate.json" > /dev/null
done
python3 - "$work" "$repeats" "${BAR:-15}" $rates << 'X'
import json, sys
work, repeats, bar, rates = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
errors = []
print(f"{'Mbit/s':>7} {'hosts':>5} {'measured s':>10} {'predicted s':>11} {'error %':>8} {'fetched MiB':>11} {'predicted':>9} {'error %':>8}")
for rate in rates:
    points = json.load(open(f"{work}/predicted.{rate}.json"))["points"]
    for point in points:
        runs = [json.load(open(f"{work}/measured.{rate}.{point['ranks']}.{r}.json")) for r in range(1, repeats + 1)]
        best = min(run["seconds"]["total"] - run["seconds"].get("load", 0) - run["seconds"].get("write", 0) for run in runs)
        predicted = point["seconds"]["total"] - point["seconds"]["rest"]
        fetched, planned = runs[0]["bytes_fetched"] / 2**20, point["bytes_fetched"] / 2**20
        error = 100 * (predicted / best - 1)
        errors.append(abs(error))
        of_bytes = f"{100 * (planned / fetched - 1):8.1f}" if fetched else f"{'-':>8}"
        print(f"{rate:>7} {point['ranks']:>5} {best:10.3f} {predicted:11.3f} {error:8.1f} {fetched:11.1f} {planned:9.1f} {of_bytes}")
mean = sum(errors) / len(errors)
print(f"mean error {mean:.1f}%, largest {max(errors):.1f}%, bar {bar:g}%")
sys.exit(mean > bar)
X
