# Is the speed in my log what it should be?
python -m projector performance --anchor measured/logs/cpu_gpt.log.gz
