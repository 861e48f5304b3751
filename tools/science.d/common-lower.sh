# Makes lower/: text cut as Multi30k is (tokenise.sed), for the commands that use Multi30k's `tok` files.

lower() {
    LC_ALL=C tr A-Z a-z | LC_ALL=C sed -f "$home/tools/science.d/tokenise.sed"
}

# make_lower [LANG …]: the novels with one sentence a line, and the pairs side by side again.
make_lower() {
    local l p
    [ $# -gt 0 ] || set -- en de fr
    mkdir -p lower
    for l; do
        [ -f lower/eltec.$l.txt ] || { sed 's/\([.!?]\) \([A-Z]\)/\1\n\2/g' data/mono/eltec.$l.txt | lower > lower/eltec.$l.tmp &&
            mv lower/eltec.$l.tmp lower/eltec.$l.txt; } &
        [ -f lower/commonvoice.$l.txt ] || [ ! -f data/mono/commonvoice.$l.txt ] || { lower < data/mono/commonvoice.$l.txt > lower/commonvoice.$l.tmp &&
            mv lower/commonvoice.$l.tmp lower/commonvoice.$l.txt; } &
    done
    for p in en-de en-fr de-fr; do
        [ -f lower/$p.tsv ] || { cut -f1 data/para/tatoeba.$p.tsv | lower > lower/$p.1 && cut -f2 data/para/tatoeba.$p.tsv | lower > lower/$p.2 &&
            paste lower/$p.1 lower/$p.2 > lower/$p.tmp && mv lower/$p.tmp lower/$p.tsv; } &
    done
    wait
}
