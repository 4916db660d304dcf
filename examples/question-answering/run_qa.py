"""The script of the old command lines: the same flags, now Plough's question answering task.

mpirun -n 2 -genv OMP_NUM_THREADS=23 plough exec run_qa.py --model_name_or_path ... --do_train ...
"""

import sys

from plough.tasks.question_answering.main import entry

if __name__ == "__main__":
    sys.exit(entry())
