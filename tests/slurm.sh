#!/bin/bash
# A site in a Slurm allocation: two nodes of one machine, without systemd, all of it in a temporary folder. The ranks start by
# srun (PMIx) and by mpirun, from a batch script and by hand; they end with the same bits. A rank that is killed comes back,
# a rank that hangs is named, and a job that is cancelled leaves a checkpoint. Needs root, munge and slurm-wlm.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
skip() { echo "slurm: skipped, $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "the daemons of Slurm need root"
export PATH=$PATH:/usr/sbin
for program in mpirun munged slurmctld slurmd srun sbatch; do
    command -v $program > /dev/null || skip "there is no $program (apt install slurm-wlm munge openmpi-bin)"
done
[ -e "$(dirname "$nebula")/libnebula-i-mpi.so" ] || skip "the program was built without Open MPI"
dir=$(mktemp -d)
chmod 755 "$dir"
daemons=
stop() {
    release_ports
    [ -z "$daemons" ] || scancel --user=root > /dev/null 2>&1 || true
    for pid in $daemons; do kill $pid 2> /dev/null || true; done
    for i in $(seq 200); do kill -0 $daemons 2> /dev/null || break; sleep 0.1; done # until all have gone
    for pid in $daemons; do kill -9 $pid 2> /dev/null || true; done                 # slurmd waits for its steps
    wait 2> /dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log */ranks/*.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 12000 ] || fail "waited in vain for: $1"; sleep 0.1; done; }

# ---- two nodes
mkdir -m 700 munge; mkdir state spool-n1 spool-n2 tmp-n1 tmp-n2
head -c 1024 /dev/urandom > munge/key; chmod 400 munge/key
export SLURM_CONF=$dir/slurm.conf
cat > slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldPidFile=$dir/slurmctld.pid
TmpFS=$dir/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
KillWait=20
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$(free_port) CPUs=2
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$(free_port) CPUs=2
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
munged --foreground --force --key-file=munge/key --socket=$dir/munge/socket --pid-file=$dir/munge/pid --log-file=$dir/munge/log \
    --seed-file=$dir/munge/seed > munged.log 2>&1 & daemons="$daemons $!"
until_true "[ -S munge/socket ]"
slurmctld -D > slurmctld.log 2>&1 & daemons="$daemons $!"
for n in n1 n2; do slurmd -D -N $n > slurmd-$n.log 2>&1 & daemons="$daemons $!"; done
ready=0
for i in $(seq 300); do
    if [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = 2 ]; then ready=1; break; fi
    sleep 0.1
done
[ $ready = 1 ] || { tail -n 5 slurmctld.log slurmd-n1.log >&2; skip "its daemons do not come up here"; }

# ---- a training over both
export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: nodes
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 2, heads: 2}
train: {steps: 300, tokens: 128, micro: 4, max_len: 64, lr: 2e-3, log_every: 100, threads: 1, save_every: 50}
parallel: {data: 2, timeout: 4s}
data:
  - {file: text}
YAML
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
sed -e "s#^job=.*#job=job.yaml#; s#^nebula=.*#nebula=$nebula#" "$top/examples/site.sbatch" > site.sbatch
sbatch --wait --nodes=2 --ntasks=2 --output=batch.log site.sbatch out=batch > sbatch.log 2>&1 || fail "sbatch"
salloc --quiet --nodes=2 --ntasks=2 "$nebula" train job.yaml out=mpirun parallel.launcher=mpirun > mpirun.log 2>&1 || fail "mpirun in the allocation"
same batch mpirun
if srun --mpi=list 2>&1 | grep -q pmix; then
    srun --quiet --mpi=pmix --nodes=2 --ntasks=2 "$nebula" train job.yaml out=hand > hand.log 2>&1 || fail "srun by hand"
    same batch hand
fi
if salloc --quiet --nodes=2 --ntasks=2 "$nebula" train job.yaml out=three parallel.data=3 train.micro=3 > three.log 2>&1; then fail "three ranks began in two tasks"; fi
grep -q "the Slurm allocation has 2 tasks, but the job's layout has 3 ranks" three.log || fail "no message about the number of tasks"

# ---- ranks that are lost, a job that is cancelled
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
ranks_of() { # OUT
    for p in $(here $(pgrep -f "$nebula train job.yaml.* out=$1")); do
        tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -qE '^(OMPI_COMM_WORLD_RANK|PMIX_RANK)=' && echo $p
    done
}
for signal in KILL STOP; do
    rm -rf hurt
    sbatch --nodes=2 --ntasks=2 --output=hurt-$signal.log site.sbatch out=hurt train.steps=2000 > sbatch.log 2>&1 || fail "sbatch"
    until_true '[ -n "$(ls hurt/checkpoints/*.neb 2> /dev/null)" ]'
    kill -$signal $(ranks_of hurt | tail -1)
    until_true '[ -z "$(squeue -h)" ]'
    grep -q "a rank was lost" hurt-$signal.log || fail "nobody noticed SIG$signal"
    [ $signal = KILL ] || grep -q "rank [01] of 2 stuck or gone" hurt-$signal.log || fail "nobody named the rank that hangs"
    grep -q "2000/2000" hurt-$signal.log || fail "the training did not survive SIG$signal"
done
sbatch --nodes=2 --ntasks=2 --output=cancel.log site.sbatch out=cancel train.steps=100000 > sbatch.log 2>&1 || fail "sbatch"
until_true '[ -n "$(ls cancel/checkpoints/*.neb 2> /dev/null)" ]'
scancel --user=root
until_true 'grep -q "stopped at step" cancel.log'
until_true '[ -z "$(squeue -h)" ]'
echo "slurm: ok"
