#!/bin/bash
# A member with a valid key lies (tests/liar.c), one kind of lie after the other. The two honest sites go on committing, hold
# no more memory and disk than docs/trust.md says, and name the liar once. At the end they hold one state.
set -eu
nebula=$1 liar=$2
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
cat "$top/LICENSE" "$top"/docs/*.md > text
for s in a b c; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b c; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: liars
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 1000000, tokens: 256, max_len: 64, lr: 2e-3, log_every: 1000000, threads: 1, save_every: 1000000}
wan: {interval: 10, fragments: 1, tokens: 1000000000, round_seconds: 1}
sites:
  - {name: a}
  - {name: b}
  - {name: c}
data:
  - {file: text}
YAML
field() { sed -n "s/^  \"$2\": \\([0-9]*\\),/\\1/p" $1/run/status.json 2>/dev/null | head -1; }
records() { n=$(field $1 record); echo ${n:-0}; }
reaches() { # SITE RECORD
    for i in $(seq 1800); do [ "$(records $1)" -lt $2 ] || return 0; sleep 0.1; done; return 1; }
begin() { "$nebula" train job.yaml --site $1 out=out-$1 >> $1.log 2>&1 & eval "pid_$1=$!"; }
memory() { eval "sed -n 's/^VmHWM: *\\([0-9]*\\) kB/\\1/p' /proc/\$pid_$1/status"; } # the most so far, in KiB
disk() { du -sk $1/run | cut -f1; }
logged() { # SITE TEXT: waits for it
    for i in $(seq 1800); do ! grep -q "$2" $1.log || return 0; sleep 0.1; done; return 1; }

named() { # TEXT: waits until one of the honest sites says it. Their own updates are kept for c and take disk meanwhile.
    for i in $(seq 1800); do ! cat a.log b.log | grep -q "$1" || return 0; sleep 0.1; done; return 1; }

claims() { # of c that the two have refused together; each kind of false claim shows here, the log names only the first
    cat [ab]/run/status.json 2>/dev/null | grep -o 'c:[^;"]* [0-9]* claims' | sed 's/.* \([0-9]*\) claims/\1/' |
        awk '{ n += $1 } END { print n + 0 }'; }
refuted() { # COUNT: waits until more claims than that are refused
    for i in $(seq 1800); do [ "$(claims)" -le $1 ] || return 0; sleep 0.1; done; return 1; }

begin a; begin b
for s in a b; do reaches $s 5 || fail "no rounds were committed"; done

claim="it says what its site"

# Each lie, and what the log of an honest site says of it ("": nothing has to be refused). $3, $4: MiB of memory and disk that
# it may cost a site.
lie() { # HOW SENTENCE MEMORY DISK
    local m=$(memory a) d=$(disk a) before=$(records a) claimed=$(claims)
    "$liar" c $1 > liar.log 2>&1 & local pid=$!
    [ -z "$2" ] || named "site 'c' sends: $2" || fail "$1: nobody names the liar"
    [ "$2" != "$claim" ] || refuted $claimed || fail "$1: nobody refuses what the liar claims"
    before=$(records a)
    for s in a b; do reaches $s $((before + 3)) || fail "$1: site $s commits no more"; done
    kill -9 $pid; wait $pid 2>/dev/null || true
    m=$((($(memory a) - m) / 1024)) d=$((($(disk a) - d) / 1024))
    [ $m -le $3 ] && [ $d -le $4 ] || fail "$1: site a took $m MiB more memory and $d MiB more disk, $3 and $4 are allowed"
    for s in a b; do
        [ -z "$2" ] || [ "$(grep -c "site 'c' sends: $2" $s.log)" -le 1 ] || fail "$1: site $s says it again and again"
        ! grep -q "stops taking part" $s.log || fail "$1: site $s stopped"
        ! grep -q "site '[ab]' sends: it names more" $s.log || fail "$1: site $s blames an honest site for the liar's updates"
    done
    echo "$1: ok, $m MiB of memory, $d MiB of disk"
}
lie names "it names more updates" 24 8
lie cells "it asks for more cells" 64 8
lie ahead "it sends updates that are ahead" 64 16
lie updates "it signs more updates" 64 16
lie relays "it passes on messages that their authors did not sign" 64 8
lie flood "" 128 8
lie weight "" 64 16
lie tokens "" 64 16
lie noise "" 64 16
lie thousand "" 64 16
lie poison "" 64 16
"$liar" c poison > liar.log 2>&1 & pid=$! # until one of its updates is in a record
shortened() { "$nebula" status a | grep -q "^a made shorter: .*c: "; }
told() { LINES=300 COLUMNS=200 "$nebula" watch out-a --text | grep -q "scaled: record [0-9]*: the update of c enters with factor"; }
for i in $(seq 600); do ! shortened || ! told || break; sleep 0.2; done
kill -9 $pid; wait $pid 2>/dev/null || true
shortened || fail "the status does not show what the rule of influence did"
told || fail "the timeline does not name the site whose updates were scaled"
loss=$(sed -n 's/^   "loss": \([0-9.]*\),.*/\1/p' out-a/status.json | head -1)
# With the clip alone a liar may push the model as far as the records that name one honest site allow: it stays finite.
awk "BEGIN { exit !(${loss:-nan} > 0 && ${loss:-nan} < 1e30) }" || fail "the loss of a is $loss"
echo "the loss after that: $loss"
for how in end history lapse roster leader; do lie $how "$claim" 64 8; done
kill -9 $pid_b; wait $pid_b 2>/dev/null || true # lapses that were only claimed do not outlive a start
now=$(records a)
begin b
reaches b $((now + 5)) || fail "b does not come back after lies about its lapse"
lie deaf "" 64 8
lie strangers "" 96 8

# A member links while strangers flood it.
"$liar" c strangers > liar.log 2>&1 & flood=$!
kill -9 $pid_b; wait $pid_b 2>/dev/null || true
now=$(records a)
begin b
reaches b $((now + 5)) || fail "b does not come back while strangers flood the sites"
kill -9 $flood; wait $flood 2>/dev/null || true
echo "a restart under a flood: ok"

# All start again while the liar claims another model.
for s in a b; do eval "kill -TERM \$pid_$s; wait \$pid_$s" 2>/dev/null || true; done
"$liar" c model > liar.log 2>&1 & pid=$!
now=$(records a)
begin a; begin b
for s in a b; do reaches $s $((now + 5)) || fail "model: site $s does not get going again"; done
logged a "site 'c' trains another model" || fail "model: site a does not name the liar"
"$nebula" status a | grep -q "^a refused by a quota: c: " || fail "the status does not show what was refused"
kill -9 $pid; wait $pid 2>/dev/null || true
echo "model: ok"

"$nebula" order a end --operator a --wait 60 > /dev/null || fail "the order end"
for s in a b; do eval "wait \$pid_$s" || fail "site $s"; done
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log | tail -1; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "the state roots differ: '$(root a)' '$(root b)'"
echo "liars: ok, state root $(root a)"
