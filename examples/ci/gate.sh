#!/bin/sh
# Projection accuracy as a gate, for any CI that has a POSIX shell.
#
#   examples/ci/gate.sh SUITE... [flags of "harness run"]
#
# Environment
#   OUT       folder of the results and reports (default: out/gate); gate.xml in it is JUnit
#   MODE      simulate, benchmark or both (default: simulate)
#   BASELINE  folder of earlier results; a row that was lost or became much worse then fails the job, too
#   PYTHON    interpreter that has the harness installed (default: python3)
#
# Exit code: 0 all gates hold, 1 a gate failed, 2 the input is wrong. On GitHub Actions the harness itself writes
# annotations and the step summary.
set -eu

if [ $# -eq 0 ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

out=${OUT:-out/gate}
python=${PYTHON:-python3}
set -- "$@" --mode "${MODE:-simulate}" --out "$out" --junit "$out/gate.xml"
if [ -n "${BASELINE:-}" ]; then
    set -- "$@" --against "$BASELINE"
fi

status=0
"$python" -m harness run "$@" || status=$?
case $status in
0) echo "gate: passed; to compare the next change with this one, keep $out and name it in BASELINE" ;;
1) echo "gate: FAILED; the rows are in $out/report.html" >&2 ;;
*) echo "gate: not judged (exit code $status)" >&2 ;;
esac
exit "$status"
