# It does not fit: what is the least that I have to change?
python -m projector performance --model llama3_70b --gpu h100 --gpus 64 --tp 8 --pp 2 --mbs 2 --gbs 256 --use-distributed-optimizer
