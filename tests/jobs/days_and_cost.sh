# How long and how dear is the whole run?
python -m projector plan --model llama3.1_8b --gpu h100 --gpus 256 --tp 2 --gbs 512 --use-distributed-optimizer --tokens 15T --price 2.5
