#!/bin/bash
# beside.sh: two machines made of one, for `nebula-i bench parallel --arm beside2`: gradients that are added up during the backward pass
# against sums behind it. Each machine is a network namespace with a host name and a core of its own; the line between them carries RATE
# each way (tbf). Needs root, two cores and Open MPI.
#
#     bench/beside.sh build/release/nebula-i [1gbit] [options of bench parallel]
set -eu
nebula=$(realpath "$1")
rate=${2:-1gbit}
shift; [ $# -eq 0 ] || shift
id=$$
dir=$(mktemp -d)
stop() {
    for n in 1 2; do ip netns del neb$id-$n 2> /dev/null || true; done
    rm -rf "$dir"
}
trap stop EXIT
for n in 1 2; do
    ip netns add neb$id-$n
    ip -n neb$id-$n link set lo up
done
ip link add nebv1 netns neb$id-1 type veth peer name nebv2 netns neb$id-2
for n in 1 2; do
    ip -n neb$id-$n addr add 10.77.0.$n/24 dev nebv$n
    ip -n neb$id-$n link set nebv$n up
    tc -n neb$id-$n qdisc add dev nebv$n root tbf rate $rate burst 256kb latency 50ms
done

# mpirun reaches the second machine by this: it gets a host and a command
cat > "$dir/agent" <<AGENT
#!/bin/bash
shift
export PATH=$PATH
exec ip netns exec neb$id-2 unshare --uts taskset -c 1 bash -c "hostname machine2; \$*"
AGENT
chmod +x "$dir/agent"
printf '10.77.0.1 slots=1\n10.77.0.2 slots=1\n' > "$dir/hosts"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_orte_default_hostfile=$dir/hosts OMPI_MCA_plm_rsh_agent=$dir/agent OMPI_MCA_rmaps_base_mapping_policy=node
export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
ip netns exec neb$id-1 unshare --uts taskset -c 0 bash -c 'hostname machine1; exec "$@"' - \
    "$nebula" bench parallel --arm beside2 --out "$dir/out" "$@"
