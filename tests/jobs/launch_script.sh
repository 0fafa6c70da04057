# What will this launch script do?
python -m projector performance --config tests/jobs/train.sh --gpu h100 --gpus 64
