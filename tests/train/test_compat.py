"""Scripts that import from transformers get Plough's classes under `plough exec`, however they do it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.helpers import last_json, plough

IMPORTS = {
    "from transformers": "from transformers import Trainer, TrainingArguments",
    "arguments first": "from transformers import TrainingArguments\nfrom transformers import Trainer",
    "from the modules": "from transformers.trainer import Trainer\n"
    "from transformers.training_args import TrainingArguments",
    "as attributes": "import transformers\n"
    "Trainer, TrainingArguments = transformers.Trainer, transformers.TrainingArguments",
    "plough first": "import plough; plough.Trainer\nfrom transformers import Trainer, TrainingArguments",
    "plough last": "from transformers import Trainer, TrainingArguments\nimport plough; plough.Trainer",
    "seq2seq first": "from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments\n"
    "from transformers import Trainer, TrainingArguments",
    "trl first": "import trl; trl.SFTTrainer\nfrom transformers import Trainer, TrainingArguments",
}

# Forking after the imports that take long and are no part of what is tested.
ALL_WAYS = """
import json, os, sys
import torch, accelerate, datasets, tokenizers, torch.distributed.fsdp
import transformers  # lazy: neither the Trainer's module nor the arguments' is loaded by it
assert not {"transformers.trainer", "transformers.training_args"} & set(sys.modules)
ways = json.loads(sys.argv[1])
found = {}
for name, code in ways.items():
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            scope = {}
            exec(code, scope)
            import transformers, transformers.trainer, transformers.training_args
            T, A = scope["Trainer"], scope["TrainingArguments"]
            assert transformers.Trainer is transformers.trainer.Trainer is T
            assert transformers.TrainingArguments is transformers.training_args.TrainingArguments is A
            said = [f"{T.__module__}.{T.__qualname__}", f"{A.__module__}.{A.__qualname__}"]
        except BaseException as error:
            said = [repr(error)]
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        found[name] = json.load(pipe)
    os.wait()
print(json.dumps(found))
"""


@pytest.mark.parametrize("compat", [True, False])
def test_every_way_of_importing(compat: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALL_WAYS)
    ways = {k: v for k, v in IMPORTS.items() if compat or "plough" not in k}
    flags = [] if compat else ["--no-compat"]
    done = plough("exec", *flags, script, json.dumps(ways), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = ["plough.train.trainer.Trainer", "plough.train.arguments.TrainingArguments"]
    theirs = ["transformers.trainer.Trainer", "transformers.training_args.TrainingArguments"]
    assert last_json(done.stdout) == dict.fromkeys(ways, ours if compat else theirs)


LIBRARIES = """
import inspect, json, pickle, sys
from pathlib import Path

import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    HfArgumentParser, PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer,
    TrainingArguments,
)
import transformers.trainer, transformers.training_args
import plough
from tests.train.helpers import losses, tiny_llama

assert issubclass(Seq2SeqTrainer, plough.Trainer)
assert issubclass(Seq2SeqTrainingArguments, plough.TrainingArguments)
assert issubclass(trl.SFTTrainer, plough.Trainer)
assert issubclass(trl.SFTConfig, plough.TrainingArguments)
assert issubclass(trl.DPOTrainer, plough.Trainer)

# What libraries read of the class and its module.
base = Trainer.__mro__[1]
assert (base.__module__, base.__qualname__) == ("transformers.trainer", "Trainer")
assert inspect.signature(Trainer.__init__) == inspect.signature(base.__init__)
assert inspect.signature(Trainer) == inspect.signature(base)
assert "class Trainer" in inspect.getsource(transformers.trainer)
assert "def __post_init__" in inspect.getsource(transformers.training_args)
assert "def training_step" in inspect.getsource(base.training_step)
assert pickle.loads(pickle.dumps(Trainer)) is Trainer
assert pickle.loads(pickle.dumps(TrainingArguments(output_dir="x"))).output_dir == "x"

# Old flags in the arguments of a library's own class.
parser = HfArgumentParser(trl.SFTConfig)
(config,) = parser.parse_args_into_dataclasses([
    "--output_dir", sys.argv[1], "--no_cuda", "--use_ipex", "--ddp_backend", "ccl", "--warmup_ratio", "0.5",
    "--max_steps", "4", "--per_device_train_batch_size", "2", "--logging_steps", "1", "--report_to", "none",
    "--disable_tqdm", "True", "--max_length", "32", "--save_strategy", "no", "--bf16", "False",
    "--learning_rate", "1e-2",
])
assert config.use_cpu and config.get_warmup_steps(4) == 2

words = "the quick brown fox jumps over a lazy dog".split()
vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{w: i + 3 for i, w in enumerate(words)}}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
)
trainer = trl.SFTTrainer(
    model=tiny_llama(),
    args=config,
    train_dataset=Dataset.from_dict({"text": [" ".join(words[i:] + words[:i]) for i in range(8)]}),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()
present = {p.name for p in Path(sys.argv[1]).iterdir()}
assert {"plough.json", "training_args.json", "model.safetensors"} <= present
record = json.loads((Path(sys.argv[1]) / "plough.json").read_text())
print(json.dumps({"losses": losses(trainer.state.log_history), "contract": record["contract"]}))
"""


def test_libraries_built_on_the_trainer(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LIBRARIES)
    done = plough("exec", script, tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert len(found["losses"]) == 4
    assert found["losses"][-1] < found["losses"][0]
    assert found["contract"]["identity"]["world_size"] == 1
    # No launcher says it for `plough exec` alone: the rank does.
    assert "what ran" in done.stderr
    assert "4 steps" in done.stderr


def test_installed_classes_do_not_change_without_the_worker() -> None:
    import transformers

    import plough

    assert plough.Trainer is not transformers.Trainer
    assert issubclass(plough.Trainer, transformers.Trainer)
    assert plough.TrainingArguments is not transformers.TrainingArguments
