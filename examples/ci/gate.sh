#!/bin/sh
# Projection accuracy as a gate, for any CI that has a POSIX shell; run it in the root of the repository.
#
#   examples/ci/gate.sh SUITE... [flags of "harness run"]
#
# Environment
#   OUT       folder of the results and reports (default: out/gate); gate.xml in it is JUnit
#   MODE      simulate, benchmark or both (default: simulate)
#   BASELINE  folder of earlier results; a row that was lost, removed or became much worse then fails the job, too
#             (--drift-tolerance X says how much, --allow-removed lets rows go). Without results in it: no comparison
#   KEEP      folder where the results of a job that passed are put, to be the BASELINE of the next
#   VENV      virtual environment to use; made, with the checkout installed in it, where there is none
#   PYTHON    interpreter that has the harness installed, or that makes VENV (default: python3)
#
# Exit code: 0 all gates hold, 1 a gate failed, 2 the input is wrong. On GitHub Actions the harness itself writes
# annotations and the step summary.
set -eu

if [ $# -eq 0 ]; then
    sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

python=${PYTHON:-python3}
if [ -n "${VENV:-}" ]; then
    if [ ! -x "$VENV/bin/python" ]; then
        "$python" -m venv "$VENV" && "$VENV/bin/python" -m pip install --quiet '.[harness]' || exit 2
    fi
    python=$VENV/bin/python
fi

out=${OUT:-out/gate}
set -- "$@" --mode "${MODE:-simulate}" --out "$out" --junit "$out/gate.xml"
if [ -n "${BASELINE:-}" ]; then
    if [ -f "$BASELINE/results.json" ]; then
        set -- "$@" --against "$BASELINE"
    else
        echo "gate: no results in $BASELINE, so nothing to compare with" >&2
    fi
fi

status=0
"$python" -m harness run "$@" || status=$?
case $status in
0)
    echo "gate: passed"
    if [ -n "${KEEP:-}" ]; then
        mkdir -p "$KEEP"
        cp "$out/results.json" "$KEEP/results.json.new"
        mv "$KEEP/results.json.new" "$KEEP/results.json"
        echo "gate: $KEEP/results.json is what the next change is compared with"
    fi
    ;;
1) echo "gate: FAILED; the rows are in $out/report.html" >&2 ;;
*) echo "gate: not judged (exit code $status)" >&2 ;;
esac
exit "$status"
