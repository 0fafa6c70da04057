# The same job on two GPUs, each in its best layout.
python -m projector ask --model llama3.1_8b --gpu h100,mi300x --gpus 8 --budget 0 --price 2
