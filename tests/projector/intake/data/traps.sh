# All of these start 16 processes with tensor parallelism 4; the eights are traps. @RUN, @MODEL and @TP stand in test_scripts.py.
#: comment
# old: torchrun --nproc_per_node 8 x.py @TP 8
A='@MODEL'
@RUN $A @TP 4 # @TP 8
#: prose
cat <<'EOF'
use @TP 8 --num-layers 2
EOF
echo torchrun @TP 8
@RUN @MODEL @TP 4
#: branch
TP=4; if [ $TP -gt 4 ]; then @RUN @MODEL @TP 8; fi
@RUN @MODEL @TP $TP
#: function
big() { @RUN @TP 8; }
run() { torchrun --nnodes $1 --nproc_per_node 8 pretrain_gpt.py @MODEL @TP $2; }
run 2 4
#: last wins
torchrun --nnodes=2 --nproc-per-node=8 pretrain_gpt.py @TP 8 @MODEL @TP=4
#: commented array
A=(
@MODEL
# @TP 8
@TP 4)
@RUN "${A[@]}"
#: preprocessing first
python tools/preprocess_data.py --input x --tokenizer-type GPT2BPETokenizer
@RUN @MODEL @TP 4
#: wrapped
nohup numactl -l nsys profile -o x @RUN @MODEL @TP 4 > log 2>&1 &
#: module
python -u -m torch.distributed.launch --nnodes 2 --nproc_per_node 8 -m pretrain_gpt @MODEL @TP 4
#: slurm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
srun -l singularity exec --nv x.sif python pretrain_gpt.py @MODEL @TP 4
#: slurm, a task a node
#SBATCH -N 2
#SBATCH --gres=gpu:h100:8
srun --ntasks-per-node=1 bash -c 'torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE pretrain_gpt.py @MODEL @TP 4'
#: slurm, itself
#SBATCH --nodes=2
[ -z "$SLURM_JOB_ID" ] && { sbatch $0; exit; }
srun @RUN @MODEL @TP 4
#: srun options
srun -N2 -n16 python pretrain_gpt.py @MODEL @TP 4
#: mpirun
mpirun --allow-run-as-root -np 16 -H a:8,b:8 -x PATH -mca btl tcp python pretrain_gpt.py @MODEL @TP 4
#: bcprun
bcprun --debug -n 2 -p 8 -w /opt -e A=1 -c 'cd b && python3 -u pretrain_gpt.py @MODEL @TP 4'
#: bcprun and torchrun
bcprun --nnodes=2 --npernode=1 --cmd '@RUN @MODEL @TP 4'
#: mpirun by node
mpiexec -n 16 --map-by ppr:8:node python pretrain_gpt.py @MODEL @TP 4
#: pbs
#PBS -l select=2:ncpus=64:ngpus=8:mpiprocs=1
N=$(wc -l < $PBS_NODEFILE)
torchrun --nnodes $N --nproc_per_node 8 pretrain_gpt.py @MODEL @TP 4
#: hosts by name
#SBATCH --nodes 2
H=($(scontrol show hostnames $SLURM_JOB_NODELIST))
for h in ${H[@]}; do
ssh $h "torchrun --nnodes ${#H[@]} --nproc_per_node 8 pretrain_gpt.py @MODEL @TP 4" &
done
#: visible devices
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
torchrun --nnodes 2 --nproc_per_node gpu pretrain_gpt.py @MODEL @TP 4
#: abbreviated
@RUN @MODEL --tensor-model-parallel 4
#: old word
@RUN @MODEL --model-parallel-size 4
#: inner script
cat > run.sh <<EOF
torchrun --nnodes \$1 --nproc_per_node 8 pretrain_gpt.py @MODEL @TP 4
EOF
chmod +x run.sh; ./run.sh 2
#: files
[ -f pretrain_gpt.py ] || { echo no; exit 1; }
[ -d ckpt ] && L='--load ckpt'
@RUN @MODEL $L @TP 4
#: needed, and nothing of it
set -u
echo $DATA ${HOME_OF:?set it}
DATA=$DATA/x
@RUN @MODEL @TP 4 --bf16
#: not set
@RUN @MODEL $EXTRA_ARGS @TP 4 --bf16 $MORE
#: slurm, a task a GPU
#SBATCH -N 2-2
#SBATCH --gpus=16
#SBATCH --ntasks-per-gpu=1
srun python pretrain_gpt.py @MODEL @TP 4
#: srun, a task a GPU
srun -N 2 --gpus-per-node=8 --ntasks-per-gpu=1 python pretrain_gpt.py @MODEL @TP 4
#: jsrun
jsrun -n 4 -r 2 -a 4 -g 4 -c 40 python pretrain_gpt.py @MODEL @TP 4
#: hosts
mpirun --host a:8,b:8 python pretrain_gpt.py @MODEL @TP 4
#: hostfile
printf '# two\na slots=8\nb slots=8 max_slots=9\n' > hosts
mpirun --hostfile hosts python pretrain_gpt.py @MODEL @TP 4
#: deepspeed, chosen hosts
printf 'a slots=8\nb slots=8\nc slots=8\n' > hosts
deepspeed --hostfile hosts --include 'a@c' pretrain_gpt.py @MODEL @TP 4
deepspeed --hostfile hosts --exclude 'a:0,1,2,3@c:1,2,3,4' pretrain_gpt.py @MODEL @TP 4
deepspeed --include='a:0,1,2,3,4,5,6,7@b:0,1,2,3,4,5,6,7' pretrain_gpt.py @MODEL @TP 4
#: srun, the variables of its step
srun -N 2 --ntasks-per-node=1 bash -c 'torchrun --nnodes ${SLURM_NNODES:-1} --nproc_per_node 8 pretrain_gpt.py @MODEL @TP 4'
#: srun, a step of some nodes
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
srun -N 2 --ntasks-per-node=1 bash -c 'torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE pretrain_gpt.py @MODEL @TP 4'
#: watched
(while true; do while true; do nvidia-smi --query-gpu=name --format=csv; done; sleep 60; done) &
while true; do while true; do read -p 'go? ' a; [ "$a" = y ] && break; done; read b; [ "$b" = z ] && break; done
@RUN @MODEL @TP 4
#: bound
torchrun --nnodes 2 --nproc_per_node 8 --no-python ./bind.sh python3 pretrain_gpt.py @MODEL @TP 4
#: many conditions, and nothing of them
for i in a b c d e f g h; do [ -d /opt/$i ] && export LD_LIBRARY_PATH=/opt/$i; done
@RUN @MODEL @TP 4
