# Constructs of bash, each below its name: what they launch is compared with what bash passes.
#: defaults
TP=${TP:-2}; : ${PP:=4}; E=""; torchrun t.py --a $TP $PP "${E:-x y}" ${E:+no} ${TP:+yes}
#: export, local
export A=1 B="2 3"; f() { local A=9 C=$1; torchrun t.py --f $A "$B" $C; }; f 7; A=${A}5; torchrun t.py --g $A
#: arrays
A=(--x 1 "two words"); A+=(--y "$((3+4))"); torchrun t.py "${A[@]}" ${#A[@]} ${A[2]} "${A[*]}" "${A[@]:1:2}"
#: array with comments
A=(
 --x 1 # one
 # --x 2
 --y 3
)
torchrun t.py ${A[@]}
#: envsubst
export A=1 B='x y'; C=3; printf '%s\n' 'a=$A ${B} $C' > t; torchrun t.py $(envsubst < t) "$(envsubst '$A' < t)"
#: lone dollars
D="--dir $/fsx/x"; torchrun t.py $D a$/b "$/c" "x$"
#: words of a text
O=" --a 1 \
 --b 2 "; torchrun t.py $O --c "$O"
#: associative
declare -A M=([7b]=32 [13b]=40); M[x]=5; k=13b; torchrun t.py --n ${M[$k]} ${M[7b]} ${M[x]} ${#M[@]}
#: arithmetic
N=4; let K=N*2; (( J = K + 1 )); i=1; ((i++)); torchrun t.py --n $((16*N)) $K $J $i $((7/2)) $((-7/2)) $((7%3)) $((2**5)) $((N>3?10:20)) $((0x1f)) $(( (1<<3) | 1 )) $((!0)) $((N==4&&J!=9)) $[N+1]
#: bases
X=08; N=$((10#$X)); M=$((10#${X}+1)); Y="16#ff" ; torchrun t.py --n $N $M $((10#"$X")) $((2#101)) $((Y)) # 10#$X
#: suffixes
x=a/b/train.tar.gz; torchrun t.py --n ${x%.*} ${x%%.*} ${x#*/} ${x##*/} ${x/a/z} ${x//a/z} ${x:2:3} ${x: -2} ${#x} ${x^^} ${x/%gz/bz} ${x/#a/q}
#: quotes
x=v; torchrun t.py --n '$x' "$x" "a'b" 'a"b' a\ b "\$x" "\\" $'t\tb' pre"mid $x"post
#: indirect
a=1; n=a; torchrun t.py --n ${!n}
#: if
x=3; y=; if [ $x -gt 2 ] && [ -z "$y" ]; then A=1; elif [ 1 = 2 ]; then A=2; else A=3; fi; torchrun t.py --a $A
#: double brackets
x=h100_sxm; if [[ $x == h100* && ! $x =~ ^a[0-9]+$ || -n $q ]]; then A=1; else A=2; fi; torchrun t.py --a $A
#: quoted patterns
x="a*"; if [[ ab == "$x" ]]; then A=1; else A=2; fi; if [[ ab == $x ]]; then B=1; fi; torchrun t.py --a $A $B
#: old tests
x=1; [ "$x" = 1 -a ! "$x" = 2 ] && A=1; [ "$x" == 2 -o -n "$x" ] || A=2; test $x -le 1 && B=3; torchrun t.py --a $A $B
#: case
s=7B; case "$s" in 1B) N=1;; 7B|7b) N=2;; *) N=3;; esac; case x$s in x[0-9]*) M=1;; esac; torchrun t.py --n $N $M
#: case falls through
s=a; N=; case $s in a) N+=1;& b) N+=2;; *) N+=3;; esac; torchrun t.py --n $N
#: loops
S=; for i in 1 2 {3..5} {x,y}; do [ $i = 4 ] && continue; S+=$i; done; for ((j=0;j<3;j++)); do S+=_$j; done; k=0; while [ $k -lt 3 ]; do k=$((k+1)); [ $k = 2 ] && break; done; torchrun t.py --n $S $k
#: until
k=0
until [ $k -ge 2 ]; do k=$((k+1)); done
torchrun t.py --n $k
#: options
set -- --tp 4 --name=big -v rest; while [[ $# -gt 0 ]]; do case "$1" in --tp) TP="$2"; shift 2;; --name=*) N="${1#*=}"; shift;; -v) V=1; shift;; *) R+=("$1"); shift;; esac; done; torchrun t.py --a $TP $N $V "${R[@]}"
#: functions
add() { echo $(( $1 + $2 )); }; n=$(add 3 4); g() { return 1; }; g || B=no; torchrun t.py --n $n $B "$(add 1 1)"
#: recursion
f() { if [ $1 -gt 0 ]; then S+=$1; f $(($1-1)); fi; }; f 3; torchrun t.py --n $S
#: here-document
X=5; cat <<EOF > c.txt
{"n": $X, "m": "\$X", "s": $((X+1))}
EOF
torchrun t.py --c "$(cat c.txt)"
#: quoted here-document
X=5; cat > c.txt <<'EOF'
$X $(date)
EOF
torchrun t.py --c "$(cat c.txt)"
#: here-document with tabs
cat <<-EOF > c.txt
	a
	EOF
torchrun t.py --c "$(< c.txt)"
#: here-string
read -r a b <<< "1 2 3"; IFS=, read -ra L <<< "x,y"; torchrun t.py --n "$a" "$b" "${L[1]}"
#: tools
x=0,1,2,3; n=$(echo $x | tr , "\n" | wc -l); m=$(echo $x | awk -F, "{print NF}"); torchrun t.py --n $((n)) $m $(basename /a/b.sh .sh) $(dirname /a/b.sh) $(seq 1 3) $(expr 3 \* 4) $(echo $x | cut -d, -f2) $(printf '%02d' 7)
#: remarks
torchrun t.py `# it's one; of two` --n 1 \
  `# -- 模型 --` \
  --m 2
#: commas
x=0,1,2; n=$(($(echo $x | grep -o "," | wc -l)+1)); torchrun t.py --n $n $(echo a:b:a | grep -o a)
#: bc
torchrun t.py --n $(echo "3*4" | bc) $(echo "scale=2; 7/2" | bc)
#: eval
CMD="torchrun t.py --n 1"; CMD="$CMD --m 'a b'"; eval $CMD; $CMD
#: subshell
x=1; (x=2; torchrun t.py --n $x); torchrun t.py --n $x; { x=3; }; torchrun t.py --n $x
#: bash -c
export X=1; Y=2; bash -c 'torchrun t.py --n $X "${Y:-none}" "$1"' name arg; bash -c "torchrun t.py --n $Y" 
#: prefix
A=1 torchrun t.py --n ${A:-0}; B=2
torchrun t.py --n $B
#: two assignments in a line
a=1 b=2
torchrun t.py --n $a $b
#: script by here-document
X=8; cat <<EOF > in.sh
torchrun t.py --n $X \$1
EOF
bash in.sh arg
#: sed
echo "n: SIZE, m: SIZE" > t.txt; sed "s/SIZE/12/" t.txt > u.txt; torchrun t.py --n "$(cat u.txt)"
#: comments
# TP=8
TP=2 # TP=4
: '
TP=16
'
torchrun t.py --n $TP # --n 3
#: branch not taken
if false; then torchrun t.py --n 1; fi; false && torchrun t.py --n 2; true || torchrun t.py --n 3; torchrun t.py --n 4
#: what a pattern found
set -u; [[ tp=8x2 =~ ^tp=([0-9]+)x([0-9]+)$ ]] && torchrun t.py --n ${BASH_REMATCH[2]}
#: a new enough bash
set -u; (( BASH_VERSINFO[0] >= 4 )) && [[ -n $BASH_VERSION ]] && torchrun t.py --n 1
#: status of a pipe
set -u; true | true; torchrun t.py --n ${PIPESTATUS[0]} | cat
#: pipe and redirect
torchrun t.py --n 1 2>&1 | tee log.txt; torchrun t.py --n 2 > out.log 2>&1 &
wait
#: heredoc to shell
bash <<EOF
torchrun t.py --n 1
EOF
#: integer
declare -i n=3+4; n+=1; torchrun t.py --n $n
#: unset
x=1; unset x; torchrun t.py --n ${x-none} ${x:-empty}
#: getopts
set -- -a 3 -b rest; while getopts "a:b" o; do case $o in a) A=$OPTARG;; b) B=1;; esac; done; torchrun t.py --n $A $B
#: shift
set -- a b c; shift; torchrun t.py --n $1 $# "$@"; shift 2; torchrun t.py --n $#
#: mapfile
mapfile -t L <<< $'a\nb'; torchrun t.py --n "${L[1]}" ${#L[@]}
#: exit
torchrun t.py --n 1; exit 0; torchrun t.py --n 2
#: negation
if ! [ 1 = 2 ]; then A=1; fi; ! false && B=2; torchrun t.py --n $A $B
#: nested
A=x; B="${A:-${C:-y}}-${D:-"${A}z"}"; torchrun t.py --n "$B" "$(echo "$(echo "$A")")"
#: printf -v
printf -v x '%s-%s' a b; torchrun t.py --n $x
#: local scope
x=1; f() { local x; x=2; g; }; g() { torchrun t.py --n $x; }; f; g
#: arrays by index
a[0]=x; a[2]=z; i=2; torchrun t.py --n "${a[$i]}" "${a[i-2]}" "${a[-1]}"
#: keys
declare -A M; M[k]=v; for k in "${!M[@]}"; do torchrun t.py --n $k=${M[$k]}; done
#: read to the end
read -r -d '' A <<E
--x 1
--y 2
E
IFS=, read -r B C <<< "3,4,5"; IFS=: read -ra D <<< "6::7"; read F <<< 'a\b'; torchrun t.py $A $B $C "${D[@]}" $F
#: files that change
printf 'N=1\nM=2\n' > a; cp a b; sed -i 's/N=.*/N=3/' b; . ./b; echo M=4 >> a; mv a c; mkdir d; cp b c d; echo N=5 >> d/b; . d/b; rm c; . d/c; torchrun t.py $N $M
#: lines of a command
mapfile -t A < <(printf '%s\n' 10 9 | sort -n); while read -r x; do B=$x; done < <(echo 7); mapfile -tn1 C <<< "a
b"; torchrun t.py ${A[@]} $B ${#C[@]}
#: words of a file
printf '# c\nN=3\nM=4\n' > e; export $(grep -v '^#' e | xargs); echo --z 1 | xargs torchrun t.py $N $M
#: joined arrays
A=(a b c); unset A[1]; IFS=,; x="${A[*]}"; unset IFS; B=("${A[@]/#/--}"); torchrun t.py "$x" "${B[@]}" "${B[*]/%/=1}" $(IFS=+; echo "${A[*]}")
#: products of braces
torchrun t.py {a,b}{1,2} x{08..10}y {3..1..2}
#: quoted again
A=("a b" c); x=ab; bash -c "torchrun t.py ${A[*]@Q} ${x@U} $(printf '%q ' "${A[@]}")"
#: exit statuses
f() { return 1; }; f; a=$?; [ 1 = 2 ]; b=$?; true; c=$?; true && false; d=$?; for i in 1; do false; done; e=$?; case a in b) ;; esac; g=$?
if false; then :; fi; h=$?; (exit 0); i=$?; ! true; j=$?; false | true; k=$?; if [ $a -ne 0 ]; then n=2; fi; (( 0 )); torchrun t.py $? $a $b $c $d $e $g $h $i $j $k $n
#: statuses of substitutions and pipelines
f() { false; return; }; A=$(f); a=$?; B=$(grep -q x <<< x; false) || b=2; if C=$(f); then c=0; else c=1; fi; g() { local D=$(f); d=$?; }; g; X=$(exit 0); x=$?
false | true; p="${PIPESTATUS[0]}${PIPESTATUS[1]}"; true; q=${PIPESTATUS[*]}; set -uo pipefail; false | true; r=$?; set +o pipefail; false | exit 0; torchrun t.py $? $a $b $c $d $x $p $q $r
#: arguments set anew
set -x; set 1 2; a=$2; set -a; N=8; set +a; bash -c 'torchrun t.py $N $0 $1' x $a $#
#: functions handed on
h() { torchrun t.py --n $1; }; export -f h; bash -c 'h 1'; bash -c 'bash -c "h 2"'
#: counted out
torchrun t.py $(seq -s, 0 3) $(seq -w 8 10) {x..z} {c..a..2} $(printf "%0.s-" 1 2 3)
#: a name for another variable
f() { local -n a=$1 n=$2; a+=(--tp "$n"); n=$((n * 2)); local k=${!n}; torchrun f.py "$k"; }
A=(--pp 2); N=3; f A N; torchrun t.py "${A[@]}" $N
#: a name for another variable, of functions in functions
g() { local -n out=$1; out="$2 ${out:-none}"; }
f() { local x=inner; g x one; local -n out=x; g out two; torchrun t.py "$x" "$out"; }
x=outer; f; torchrun t.py "$x" "${out-unset}"
#: a name for another variable, in a subshell
declare -A M=([a]=1); declare -n m=M; (m[b]=2; torchrun t.py ${M[b]}); m[c]=3; torchrun t.py ${#M[@]} "${m[c]}" "${m[b]-}"
declare -n r=NEW; r=5; torchrun t.py $NEW; unset NEW; torchrun t.py "${r:-gone}"
