# My run takes 25.4 s a step: what would half the pipeline stages do?
python -m projector performance --anchor examples/deepseek_v3_h100.yaml --anchor-step 25.4 --pp 8 --vpp 4
