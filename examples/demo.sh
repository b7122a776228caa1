#!/bin/sh
# The paper's comparison in small: three ways to train one ReLu-LSTM on the docstrings of the installed Python.
# About three minutes on two idle cores. What it makes is in one directory (demo/, or the first argument), but for the corpus, which
# is kept for the next time in ~/.cache/bnce (or XDG_CACHE_HOME).
set -eu
bnce=${BNCE:-bnce}
out=${1:-demo}

rm -rf "$out/softmax" "$out/snce" "$out/bnce" "$out/report"
for loss in softmax snce bnce; do
    "$bnce" train demo --loss "$loss" --out "$out/$loss"
done
"$bnce" compare "$out/softmax" "$out/snce" "$out/bnce" --title "The paper's comparison in small" --out "$out/report"
echo
echo "Sentences that the B-NCE model makes up:"
"$bnce" generate "$out/bnce" --prompt "this function" --num 5 --temperature 0.7
echo
echo "The report with plots: $out/report/report.html"
