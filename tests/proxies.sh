#!/bin/bash
# Sites that cannot dial by themselves, with the programs that people have: a site in a network namespace without any network
# (by socat through a Unix socket), and sites through tinyproxy, microsocks and `ssh -W`. Each trains with another site to the end
# of a run. What is not installed is left out. Passwords must not be in any file that the run leaves.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
export PATH=$PATH:/usr/sbin
dir=$(mktemp -d)
chmod 755 "$dir"
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 12000 ] || fail "waited in vain for: $1"; sleep 0.1; done; }
listens() { grep -qi ":$(printf %04X "$1") 00000000:0000 0A" /proc/net/tcp; }
port=$(free_port) gate=$(free_port) done=
unset https_proxy HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY

cat "$top/LICENSE" "$top"/docs/*.md > text
for s in a b; do "$nebula" site init $s > /dev/null 2>&1; done
"$nebula" roster add draft a
"$nebula" roster add draft b 127.0.0.1:$port
"$nebula" roster seal draft roster --operator a > /dev/null 2>&1
for s in a b; do "$nebula" roster join roster $s > /dev/null 2>&1; done
cat > job.yaml <<'YAML'
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 500}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 100000, minutes: 3, tokens: 128, max_len: 64, lr: 2e-3, log_every: 1000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, tokens: 6000, round_seconds: 5}
sites:
  - {name: a, folder: a}
  - {name: b, folder: b}
data:
  - {file: text}
cache: cache
YAML
both() { # NAME [SETTING…]: site a dials as the settings say; PREFIX goes before its command
    local name=$1; shift
    timeout 200 "$nebula" train job.yaml --site b name=$name out=$name-b > $name-b.log 2>&1 & local b=$!
    timeout 200 ${prefix:-} "$nebula" train job.yaml --site a name=$name out=$name-a "$@" > $name-a.log 2>&1 & local a=$!
    wait $a || fail "$name: site a"
    wait $b || fail "$name: site b"
    cmp -s $name-a/model.safetensors $name-b/model.safetensors || fail "$name: the models differ"
    done="$done $name"
}
prefix= "$nebula" train job.yaml --site b --alone out=warm train.steps=1 > warm.log 2>&1 || fail "the text" # tokenised once

if command -v socat > /dev/null && unshare -rn true 2> /dev/null; then
    socat UNIX-LISTEN:gate.sock,fork TCP:127.0.0.1:$port > socat.log 2>&1 &
    until_true "[ -S gate.sock ]"
    prefix="unshare -rn" both node "sites[0].dial=socat - UNIX-CONNECT:$dir/gate.sock"
    grep -q "link to b is up (127.0.0.1:$port, by a command" node-a.log || fail "the link of the node without a network"
fi
if command -v microsocks > /dev/null; then
    microsocks -i 127.0.0.1 -p $gate -u me -P hunter2 > microsocks.log 2>&1 & socks=$!
    until_true "listens $gate"
    both socks "sites[0].proxy=socks5://me:hunter2@127.0.0.1:$gate"
    kill $socks
fi
if command -v tinyproxy > /dev/null; then
    http=$(free_port)
    printf 'Port %s\nListen 127.0.0.1\nTimeout 600\nMaxClients 20\nAllow 127.0.0.1\nBasicAuth me hunter2\nLogFile "%s/tinyproxy.log"\n' $http "$dir" > tinyproxy.conf
    [ "$(id -u)" != 0 ] || printf 'User root\nGroup root\n' >> tinyproxy.conf
    tinyproxy -d -c tinyproxy.conf > /dev/null 2>&1 & proxy=$!
    until_true "listens $http"
    both http "sites[0].proxy=http://me:hunter2@127.0.0.1:$http"
    grep -q "CONNECT 127.0.0.1:$port" tinyproxy.log || fail "the proxy was not asked"
    kill $proxy
fi
if command -v sshd > /dev/null && command -v ssh > /dev/null; then
    login=$(free_port)
    ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f user
    cp user.pub keys && chmod 600 keys
    mkdir -p /run/sshd 2> /dev/null || true
    printf 'Port %s\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s/keys\nStrictModes no\nPidFile none\nUsePAM no\n' \
        $login "$dir" "$dir" > sshd_config
    "$(command -v sshd)" -D -e -f "$dir/sshd_config" > sshd.log 2>&1 &
    mkdir bin # what ~/.ssh would say, and the program as the example names it
    printf '#!/bin/sh\nexec %s -F none -i %s/user -p %s -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"\n' \
        "$(command -v ssh)" "$dir" $login > bin/ssh
    ln -s "$nebula" bin/nebula-i
    chmod +x bin/ssh
    if for i in $(seq 50); do listens $login && break; sleep 0.1; done; bin/ssh -o BatchMode=yes 127.0.0.1 true > ssh.log 2>&1; then
        timeout 200 "$nebula" train job.yaml --site b name=ssh out=ssh-b > ssh-b.log 2>&1 & b=$!
        PATH=$dir/bin:$PATH SLURM_SUBMIT_HOST=127.0.0.1 timeout 200 bash "$top/examples/site-no-internet.sbatch" \
            --site a name=ssh out=ssh-a > ssh-a.log 2>&1 || fail "ssh: site a"
        wait $b || fail "ssh: site b"
        cmp -s ssh-a/model.safetensors ssh-b/model.safetensors || fail "ssh: the models differ"
        done="$done ssh"
    else
        echo "ssh to this machine does not work here: left out"
    fi
fi
! grep -rl hunter2 --include='*' a b *-a *-b *-a.log *-b.log || fail "a password was written"
[ -n "$done" ] || { echo "proxies: skipped, install socat, microsocks, tinyproxy or openssh-server"; exit 0; }
echo "proxies: ok,$done"
