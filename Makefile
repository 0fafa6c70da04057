# The same commands for those who have make; ./run does the work.
.PHONY: run test lint reports clean

run:
	./run
test lint reports:
	./run $@
clean:
	rm -rf .venv out build dist
