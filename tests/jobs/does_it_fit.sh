# Does it fit on one GPU, and if not, on how many?
python -m projector ask --model llama3.1_8b --gpu h100 --gpus 1
python -m projector ask --model llama3.1_8b --gpu h100 --gpus min --budget 0
