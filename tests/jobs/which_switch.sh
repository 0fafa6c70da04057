# Which switch gains most?
python -m projector performance --model llama3.1_8b --gpu h100 --gpus 16 --tp 4 --gbs 32 --seq 4k --explore
