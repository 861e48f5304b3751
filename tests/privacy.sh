#!/bin/sh
# Privacy as a user meets it: what a setting costs, a training with a budget alone and on two sites, what is refused and why, an
# audit of a folder, one that somebody changed, a signed audit, and a site that gets a new key.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; cat log >&2; exit 1; }
: > log

# ---- what a setting costs
[ "$("$nebula" privacy epsilon --noise 1.1 --rounds 14062 --sample-rate 0.0042666667 --delta 1e-5)" = 2.59656 ] || fail "privacy epsilon"
z=$("$nebula" privacy noise --epsilon 8 --rounds 1000 --sample-rate 0.01 --delta 1e-5)
e=$("$nebula" privacy epsilon --noise "$z" --rounds 1000 --sample-rate 0.01 --delta 1e-5)
awk "BEGIN { exit !($e <= 8 && $e > 7.99) }" || fail "noise $z costs $e"
"$nebula" privacy noise --epsilon 8 --rounds 100 --values 1e6 --sites 2 2>&1 | grep -q "times as long as an update may be: for unit: site" ||
    fail "no word about the noise of a whole site"
if "$nebula" privacy epsilon --noise 0 --rounds 1 2> log; then fail "no noise was accepted"; fi

# ---- alone
cat "$top/LICENSE" "$top"/docs/t*.md "$top"/docs/s*.md > text
cat > job.yaml <<'YAML'
name: quiet
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 500}
model: {family: gpt2, hidden: 16, layers: 1, heads: 2}
train: {steps: 30, tokens: 64, max_len: 16, lr: 2e-3, log_every: 1000, save_every: 10, threads: 1}
privacy: {unit: sample, epsilon: 8, samples: 8}
data: [{file: text}]
YAML
"$nebula" train job.yaml out=alone > log 2>&1 || fail "the private training failed"
grep -q "privacy: 30 steps will cost epsilon [0-9.]* at delta 1e-05: a sample of [0-9]* takes part with probability" log || fail "nobody said what it costs"
[ -s alone/privacy ] && [ "$(stat -c %a alone/privacy)" = 600 ] || fail "no account"
# a budget for 62 steps (30 planned, two blocks): the third start of the same steps is refused
for i in 1 2 3 4; do
    rm -rf alone/checkpoints alone/model.safetensors
    "$nebula" train job.yaml out=alone > log 2>&1 && continue
    grep -q "the privacy budget is spent: epsilon" log || fail "stopped for another reason"
    break
done
[ "$i" -gt 1 ] && [ "$i" -lt 4 ] || fail "start $i: a budget was not kept"
if "$nebula" train job.yaml out=alone privacy.unit=none > log 2>&1; then fail "went on without noise beside an account"; fi
grep -q "alone/privacy is a privacy account, and the job has no privacy.unit any more" log || fail "no word about the account"
cp alone/privacy kept && printf x | dd of=alone/privacy bs=1 seek=50 conv=notrunc 2> /dev/null
if "$nebula" train job.yaml out=alone > log 2>&1; then fail "a damaged account was accepted"; fi
grep -q "alone/privacy is damaged" log || fail "no message about a damaged account"

# ---- refused
refuse() { # message, words…
    want=$1
    shift
    if "$nebula" train job.yaml out=refused "$@" > log 2>&1; then fail "accepted: $*"; fi
    grep -q "$want" log || fail "no message '$want' for $*"
}
refuse "leave .noise. out, or make fewer steps" privacy.noise=0.2
refuse "this job has no .sites." privacy.unit=site
refuse "whose steps have two models" task=rtd model.family=electra
refuse "leave out data\[\].copies" 'data[0].copies=2'
refuse "name .epsilon." privacy.epsilon=0
for words in 'sites[0].name=a sites[1].name=b' 'sites[0].name=a sites[0].role=generator sites[1].name=b sites[1].role=discriminator task=rtd model.family=electra'; do
    # shellcheck disable=SC2086
    if "$nebula" lab job.yaml $words > log 2>&1; then fail "accepted: $words"; fi
    grep -Eq "needs a fixed wan.rung|no noise protects them" log || fail "no message for $words"
done

# ---- two sites
cat >> job.yaml <<'YAML'
wan: {interval: 5, fragments: 1, rung: int8, archive: yes, round_seconds: 1}
sites: [{name: a}, {name: b}]
YAML
"$nebula" lab job.yaml out=two > log 2>&1 || fail "the private run failed"
"$nebula" audit two/a/site > log 2>&1 || fail "an audit found something"
grep -q "nothing is wrong" log || fail "the audit does not say so"
[ "$(grep -cE '^  [ab] .*privacy \(sample\): epsilon [0-9.]+ of 8 at delta 1e-05' log)" = 2 ] || fail "no epsilon of both sites"
grep -q "^replayed: state root" log || fail "the audit did not replay"
"$nebula" status two/a/site > status 2>&1 || fail "status"
# an edited job does not go on without the noise
if "$nebula" lab job.yaml out=two privacy.unit=none train.steps=40 > log 2>&1; then fail "a site went on without noise"; fi
grep -q "is a privacy account, and the job has no privacy.unit any more" log || fail "no word about a site's account"

# somebody who has the roster from elsewhere, and a copy without a key
cp -r two/b/site copy && rm copy/site.key copy/site.id copy/roster
"$nebula" audit copy --roster two/a/site/roster > log 2>&1 || fail "an audit under another roster found something"
grep -q "^replayed: state root" log || fail "an audit under another roster did not replay"
[ "$("$nebula" audit two/a/site | grep "^replayed")" = "$(grep "^replayed" log)" ] || fail "two sites' folders give other states"
"$nebula" site init auditor > log 2>&1
"$nebula" audit two/b/site --json --sign auditor > audit.json || fail "no signed audit"
"$nebula" audit --verify audit.json > log 2>&1 && grep -q "^signed by auditor:.*problems: 0" log || fail "a signed audit does not verify"
sed 's/"records": /"records": 1/' audit.json > changed.json
if "$nebula" audit --verify changed.json > log 2>&1; then fail "a changed audit verifies"; fi
sed 's/"problem_count": /"problem_count": 7, &/' audit.json > changed.json
if "$nebula" audit --verify changed.json > log 2>&1; then fail "an audit that says two things verifies"; fi
sed 's/"auditor": /"problems": [], &/' audit.json > changed.json
if "$nebula" audit --verify changed.json > log 2>&1; then fail "an audit with words that nobody signed verifies"; fi

# a file that somebody put there names nobody
cp two/b/site/run/quiet/certificate two/b/site/run/quiet/guilt-1
if "$nebula" audit two/b/site > log 2>&1; then fail "a planted proof was not noticed"; fi
grep -q "problem: guilt-1 proves nothing against site 1" log || fail "no word of a planted proof"
rm two/b/site/run/quiet/guilt-1

# an update that somebody changed, a record that somebody changed
update=$(ls two/b/site/run/quiet/p-* | head -1)
printf x | dd of="$update" bs=1 seek=300 conv=notrunc 2> /dev/null
if "$nebula" audit two/b/site > log 2>&1; then fail "a changed update was not noticed"; fi
grep -q "problem: record [0-9]*: an update is damaged" log || fail "no problem was named"
if "$nebula" audit two/a/site --roster two/nothing > log 2>&1; then fail "a roster that is not there"; fi

# a member that is admitted by hand while a run is under way would keep its sites from starting again
cp -r two/a/site running && "$nebula" site init late > log 2>&1
if "$nebula" roster admit running late 127.0.0.1:7409 --operator running > log 2>&1; then fail "the beginning of a run was changed"; fi
grep -q "a run with this roster has begun, and stands at record [0-9]*: .*--head [0-9]*:[0-9a-f]\{64\}" log || fail "no word about the run"
mv running/run/status.json kept.json && "$nebula" site rekey running > request 2> log && mv kept.json running/run/status.json
if "$nebula" roster rekey running request --operator running > log 2>&1; then fail "a request that knows of no run changed its beginning"; fi
grep -q "a run with this roster has begun" log || fail "no word about the run of a request"
cmp -s two/a/site/roster running/roster || fail "a refused epoch was written"

# ---- a new key
for s in alpha beta ops; do "$nebula" site init $s > log 2>&1; done
old=$("$nebula" site show alpha)
"$nebula" roster add draft alpha 127.0.0.1:7401 && "$nebula" roster add draft beta 127.0.0.1:7402
"$nebula" roster seal draft roster --operator ops > log 2>&1
"$nebula" roster join roster alpha && "$nebula" roster join roster beta
"$nebula" site rekey alpha > request 2> log || fail "site rekey"
"$nebula" site rekey alpha 2> log | cmp -s - request || fail "a second request is for another key"
sed 's/ alpha / beta /' request > forged
if "$nebula" roster rekey roster forged --operator ops 2> log; then fail "a forged request was accepted"; fi
sed 's/0$/1/; t; s/.$/0/' request > forged
if "$nebula" roster rekey roster forged --operator ops 2> log; then fail "a bad signature was accepted"; fi
if "$nebula" roster rekey roster request --operator beta 2> log; then fail "a member signed alone"; fi
"$nebula" roster rekey roster request --operator ops > log 2>&1 || fail "roster rekey"
if "$nebula" roster rekey roster request --operator ops > log 2>&1; then fail "one request worked twice"; fi
"$nebula" roster join roster alpha 2> log || fail "the site cannot take its new key"
new=$("$nebula" site show alpha)
[ "$old" != "$new" ] || fail "the identity did not change"
"$nebula" roster show alpha | grep -q "^member 1 .*$new" || fail "the roster has another key"
[ "$(stat -c %a alpha/site.key)" = 600 ] && [ ! -e alpha/site.key.next ] || fail "the old key is still there"
"$nebula" roster join roster beta 2> log || fail "the other site cannot take the epoch"
