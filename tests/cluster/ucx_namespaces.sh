#!/usr/bin/env bash
# usage: ucx_namespaces.sh RINGMARK TESTS DATA   the ucx transport between two hosts: network namespaces of this machine,
# each with its own host name, joined by a pair of virtual interfaces; nothing but TCP connects them. The transport's
# contract; one digest and one output on 1 rank and on both hosts; a rank that is killed while the other host reads from
# it is named there within the deadline. Needs root; skips (77) where namespaces cannot be made.
set -uo pipefail
ringmark=$(realpath "$1")
tests=$(realpath "$2")
data=$(realpath "$3")
folder=$(mktemp -d)
name=rmk$$
down() {
  for host in a b; do ip netns del $name$host 2> /dev/null; done
  rm -rf "$folder"
}
trap down EXIT
skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root"
command -v ip > /dev/null && command -v nsenter > /dev/null || skip "no iproute2 or nsenter"
ip netns add ${name}a 2> /dev/null && ip netns add ${name}b 2> /dev/null || skip "network namespaces cannot be made"
ip link add ${name}a netns ${name}a type veth peer name ${name}b netns ${name}b 2> /dev/null || skip "no virtual interfaces"
address=10.231.9
for host in a b; do
  number=$([ $host = a ] && echo 1 || echo 2)
  ip -n $name$host link set $name$host name eth0
  ip -n $name$host link set lo up
  ip -n $name$host link set eth0 up
  ip -n $name$host addr add $address.$number/24 dev eth0
done
printf '127.0.0.1 localhost\n%s.1 hosta\n%s.2 hostb\n' $address $address > "$folder/hosts"

# Enters a host: its network, and a name and a /dev/shm of its own.
cat > "$folder/on" << S
#!/usr/bin/env bash
host=\$1
shift
exec nsenter --net=/run/netns/$name\${host#host} unshare --uts --ipc --mount --propagation private bash -c '
  hostname '\$host'; mount --bind $folder/hosts /etc/hosts; mount -t tmpfs -o size=64m tmpfs /dev/shm; exec "\$@"' _ "\$@"
S
# mpirun starts its daemon on the other host as through ssh: a host, then a shell command.
cat > "$folder/remote" << S
#!/usr/bin/env bash
host=\$1
shift
exec "$folder/on" "\$host" bash -c "\$*"
S
chmod +x "$folder/on" "$folder/remote"
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
mpi() {
  "$folder/on" hosta timeout -k 5 100 mpirun --host hosta:1,hostb:1 --mca plm_rsh_agent "$folder/remote" \
    --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --bind-to none \
    -x UCX_TLS -x UCX_NET_DEVICES -n 2 "$@" < /dev/null
}

mpi "$tests" --gtest_brief=1 '--gtest_filter=*/ucx' || { echo "FAIL: the contract between two hosts"; exit 1; }
run=(prefill --input "$data/layer.safetensors" --quiet --digest)
"$ringmark" "${run[@]}" --output "$folder/one.safetensors" > "$folder/one" || { echo "FAIL: one rank"; exit 1; }
mpi "$ringmark" "${run[@]}" --transport ucx --output "$folder/two.safetensors" > "$folder/two" ||
  { echo "FAIL: prefill on two hosts"; exit 1; }
grep transport "$folder/two"
grep -q '^transport *ucx' "$folder/two" || { echo "FAIL: another transport"; exit 1; }
[ "$(grep selection_digest "$folder/one")" = "$(grep selection_digest "$folder/two")" ] ||
  { echo "FAIL: another selection"; exit 1; }
cmp "$folder/one.safetensors" "$folder/two.safetensors" || { echo "FAIL: another output"; exit 1; }
echo "one digest and one output on 1 rank and on two hosts: $(grep selection_digest "$folder/two")"

# Rank 1 is killed when it has sent so many bytes: far into the reads of blocks, in waves of 1 MiB. Its parent lives on, so
# that it is the other host that has to find out.
cat > "$folder/mortal" << 'S'
#!/usr/bin/env bash
bytes=$1 killed=$2
shift 2
sent() { awk '/eth0/ { printf "%d", $10 }' /proc/net/dev; }
"$@" &
rank=$!
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
  start=$(sent)
  until [ $(($(sent) - start)) -gt "$bytes" ] || ! kill -0 $rank; do sleep 0.005; done
  kill -KILL $rank
  date +%s%N > "$killed"
  sleep 30
fi
wait $rank
S
chmod +x "$folder/mortal"
mkdir "$folder/log"
deadline=10
for megabytes in 8 10 12; do
  rm -f "$folder"/log/*
  mpi "$folder/mortal" $((megabytes * 1000000)) "$folder/killed" "$ringmark" prefill --planted 128k --quiet --fetch-mib 1 --transport ucx \
    --deadline $deadline --log-dir "$folder/log" > "$folder/out" 2> "$folder/err"
  code=$?
  took=$((($(date +%s%N) - $(cat "$folder/killed")) / 1000000))
  line=$(grep '^ringmark:' "$folder/err")
  [ $code -eq 4 ] || { echo "FAIL: exit code $code after the death of a peer"; head -20 "$folder/err"; exit 1; }
  grep -q "^ringmark: rank 0: stage 'block reads': .*rank 1" <<< "$line" || { echo "FAIL: no line names the peer: $line"; exit 1; }
  [ -e "$folder/log/error.0.json" ] || { echo "FAIL: no first cause in the log folder"; exit 1; }
  [ $took -le $((deadline * 1000 + 2000)) ] || { echo "FAIL: the end came $took ms after the death"; exit 1; }
  echo "killed after $megabytes MB: exit code 4 after $took ms: ${line#ringmark: }"
done
