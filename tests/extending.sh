#!/bin/bash
# Follows docs/extending.md. Every file and every change that the page shows is made in a copy of the sources and compiled.
# The verb, the rung and the objective become a nebula-i, the test and the fuzz target become programs, and the page's commands
# must print what the page says. A failure names the section of the page that is stale.
#     tests/extending.sh BUILD-FOLDER [PAGE]
#     tests/extending.sh BUILD-FOLDER --self-test      pages that are stale in one place must fail, with the name of the section
# Only files that the page makes or changes are compiled. Their objects stand before the build's library and win over its own.
# Sections that change a struct of a shared header (options, status, messages) are therefore compiled, but not linked.
set -eu
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

if [ "${2:-}" = --self-test ]; then
    stale() { # SECTION SED: what makes the page stale
        sed "$2" "$top/docs/extending.md" > "$dir/page.md"
        if cmp -s "$dir/page.md" "$top/docs/extending.md"; then echo "'$2' changes nothing on the page"; exit 1; fi
        if "$0" "$build" "$dir/page.md" > "$dir/log" 2>&1; then echo "not noticed: $2"; exit 1; fi
        grep -q "^FAIL: docs/extending.md, section '$1': " "$dir/log" || { cat "$dir/log"; echo "another section is named after '$2'"; exit 1; }
        grep '^FAIL' "$dir/log"
    }
    stale "A new verb" 's/^     X(generate) /     X(generated) /'           # the source around a change has changed
    stale "A new message between sites" 's/^     case NEB_MSG_MODEL: .*/     case NEB_MSG_MODEL: break;/'
    stale "A new objective" 's/cfg->random_share = 1/cfg->random = 1/'   # a name has changed
    stale "A new option of a job file" 's/(float)t->eps/(float)t->epsilon/'
    stale "A new verb" 's/^Hello, Ada!/Hello, Eve!/'                     # the program prints something else
    stale "A new codec rung" 's/^\(+static const char golden.. = "\)./\1x/' # the codec computes something else
    echo "extending: every stale page was noticed"
    exit
fi
page=$(realpath "${2:-$top/docs/extending.md}")
title="(none)"
fail() {
    echo "FAIL: docs/extending.md, section '$title': $*" >&2
    [ ! -s "$dir/log" ] || tail -n 50 "$dir/log" >&2
    exit 1
}

# ---- the page in pieces: one file a block, NUMBER.LANGUAGE, and NUMBER.title ----
mkdir "$dir/blocks" "$dir/work" "$dir/bin"
awk -v out="$dir/blocks" '
    /^## / { title = substr($0, 4) }
    /^```/ { inside = !inside
        if (!inside) { close(name); next }
        base = sprintf("%s/%03d", out, ++n); name = base "." substr($0, 4)
        print title > (base ".title"); close(base ".title"); printf "" > name; next }
    inside { print > name }' "$page"

tree_of() { echo "$dir/tree/$(echo "$1" | tr -c 'a-zA-Z0-9\n' _)"; } # TITLE: its copy of the sources
new_file() { # BLOCK: the first line names the file
    local path
    path=$(sed -n '1s|^[/#]* file: ||p' "$1")
    [ -n "$path" ] || fail "a block of code does not begin with the name of its file"
    case $path in
    */*) [ ! -e "$top/$path" ] || fail "$path is there already: choose another name for the example"
        path=$tree/$path ;;
    *) path=$dir/work/$path ;;
    esac
    mkdir -p "$(dirname "$path")"
    sed 1d "$1" > "$path"
}
change() { # BLOCK: a unified diff of one file
    local path
    path=$(sed -n 's|^+++ b/||p' "$1")
    [ -f "$top/$path" ] || fail "$path is changed, but there is no such file"
    mkdir -p "$(dirname "$tree/$path")"
    [ -e "$tree/$path" ] || cp "$top/$path" "$tree/$path"
    patch -d "$tree" -p1 -F0 -s -r - --no-backup-if-mismatch < "$1" > "$dir/log" 2>&1 || fail "the change to $path does not fit the source any more"
}
for block in "$dir"/blocks/*.title; do
    title=$(cat "$block")
    tree=$(tree_of "$title")
    for block in "${block%.title}".*; do
        case $block in
        *.c | *.yaml) new_file "$block" ;;
        *.diff) change "$block" ;;
        esac
    done
done

# ---- compiling ----
command_of() { # FILE: the build's compile command up to -o; for a new file that of one with the same beginning of its name
    local like=$top/$1 name=${1##*/}
    [ -e "$like" ] || like=$(ls "${like%/*}/${name%%_*}"_*.c | head -n 1)
    awk -v want="\"file\": \"$like\"" '/"command":/ { c = $0 } index($0, want) { print c; exit }' "$build/compile_commands.json" |
        sed 's/^ *"command": "//; s/",$//; s/\\\(.\)/\1/g; s/ -o .*//'
}
compile() { # FILE HOW: with the headers of its section first
    local command
    command=$(command_of "$1")
    [ -n "$command" ] || fail "compile_commands.json of the build has nothing like $1"
    set -- "$1" "${2/OBJECT/$tree/$1.o}"
    (cd "$build" && eval "${command/ -I/ -I$tree/src -I}" "$2" "$tree/$1") > "$dir/log" 2>&1 || fail "$1 does not compile"
}
link() { # TARGET OBJECT-TO-REPLACE OBJECTS OUT: the build's link command, with other objects
    local command
    command=$(ninja -C "$build" -t commands "$1" | tail -n 1)
    case $command in *" $2 "*) ;; *) fail "the link command of $1 has no $2" ;; esac
    command=${command/ $2 / $3 }
    (cd "$build" && eval "$(printf '%s' "$command" | sed "s| -o [^ ]* | -o $4 |")") > "$dir/log" 2>&1 || fail "$1 with the examples does not link"
}
sources() { (cd "$tree" && find . -name '*.c' | sed 's|^\./||' | sort); }

objects=
for title in "A new verb" "A new codec rung" "A new objective"; do
    tree=$(tree_of "$title")
    [ -d "$tree" ] || fail "the page has no such section with an example"
    # These two do not change, but the lists that they make their tables of do.
    [ "$title" != "A new verb" ] || cp "$top/src/cli/main.c" "$tree/src/cli"
    [ "$title" != "A new objective" ] || cp "$top/src/task/objectives.c" "$tree/src/task"
    for file in $(sources); do
        compile "$file" "-c -o OBJECT"
        objects="$objects $tree/$file.o"
    done
done
title="A new test and a new fuzz target"
tree=$(tree_of "$title")
for file in $(sources); do compile "$file" "-c -o OBJECT"; done
link test_base tests/CMakeFiles/test_base.dir/test_base.c.o "$(ls "$tree"/tests/test_*.o)" "$dir/bin/test"
"$dir/bin/test" > "$dir/log" 2>&1 || fail "the test fails"
link fuzz_status tests/CMakeFiles/fuzz_status.dir/fuzz/fuzz_status.c.o "$(ls "$tree"/tests/fuzz/fuzz_*.o)" "$dir/bin/fuzz"
mkdir "$dir/corpus"
printf '016MiB' > "$dir/corpus/size"
printf '1x' > "$dir/corpus/wrong"
"$dir/bin/fuzz" "$dir/corpus" > "$dir/log" 2>&1 || fail "the fuzz target finds something in 16MiB or in x"
for title in "A new option of a job file" "A new field of the status" "A new message between sites"; do
    tree=$(tree_of "$title")
    [ -d "$tree" ] || fail "the page has no such section with an example"
    for file in $(sources); do compile "$file" -fsyntax-only; done
done
title="A new verb"
link nebula-i CMakeFiles/nebula-i.dir/src/cli/main.c.o "$objects" "$dir/bin/nebula-i"

# ---- the page's commands ----
cd "$dir/work"
ln -s "$top/include" include
cat "$top/LICENSE" "$top"/docs/*.md > corpus.txt
export PATH="$dir/bin:$PATH"
commands=0
run() { # COMMAND EXPECTED: … stands for any text
    local got pattern
    got=$(bash -c "$1" 2> "$dir/log") || { printf '%s\n' "$got" >> "$dir/log"; fail "'$1' failed"; }
    pattern=$(printf '%s' "$2" | sed 's/[][*?\\]/\\&/g; s/…/*/g')
    # shellcheck disable=SC2053 # a pattern
    [[ $got == $pattern ]] || { printf 'the page:\n%s\nthe program:\n%s\n' "$2" "$got" > "$dir/log"; fail "'$1' prints something else"; }
    commands=$((commands + 1))
}
for block in "$dir"/blocks/*.console; do
    title=$(cat "${block%.console}.title")
    command= expected=
    while IFS= read -r line; do
        case $line in
        '$ '*)
            [ -z "$command" ] || run "$command" "$expected"
            command=${line#??} expected= ;;
        *) expected=${expected:+$expected$'\n'}$line ;;
        esac
    done < "$block"
    [ -z "$command" ] || run "$command" "$expected"
done
[ "$commands" -gt 10 ] || fail "the page has only $commands commands"
echo "extending: ok, $commands commands"
