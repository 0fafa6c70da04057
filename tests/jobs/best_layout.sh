# Which layout is best, and what does the framework start from?
python -m projector search --model llama3_70b --gpu h100 --gpus 64 --seq 8k --budget 0.1s --top 3 --write case --write megatron
python -m projector performance --config case.yaml
