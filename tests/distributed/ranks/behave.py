"""A rank that does one thing, for tests of launching: python behave.py ACTION [ARG ...]."""

import os
import signal
import sys
import time


def main() -> None:
    action, *rest = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    if action == "say":
        print("out", *rest, flush=True)
        print("err", *rest, file=sys.stderr, flush=True)
    elif action == "die":  # die RANK SIGNAL: the others wait in a collective
        _join()
        if rank == int(rest[0]):
            print("these are my last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), getattr(signal, rest[1]))
        _barrier()
    elif action == "exit":  # exit RANK CODE: the others go on as if nothing had happened
        if rank == int(rest[0]):
            print("these are my last words", file=sys.stderr, flush=True)
            sys.exit(int(rest[1]))
        time.sleep(600)
    elif action == "raise":
        if rank == int(rest[0]):
            raise RuntimeError("boom")
        time.sleep(600)
    elif action == "wait":
        print("pid", os.getpid(), flush=True)
        time.sleep(600)
    elif action == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("pid", os.getpid(), flush=True)
        time.sleep(600)
    elif action == "place":
        import torch

        print("threads", torch.get_num_threads(), "cpus", sorted(os.sched_getaffinity(0)), flush=True)
        print("world", os.environ.get("WORLD_SIZE"), "port", os.environ.get("MASTER_PORT"), flush=True)
    elif action == "add":
        import torch
        import torch.distributed as dist

        _join()
        one = torch.ones(1)
        dist.all_reduce(one)
        print("sum", int(one), flush=True)
        dist.destroy_process_group()
    elif action == "train":  # two steps of a hand-written loop
        import torch
        from torch.nn.parallel import DistributedDataParallel

        _join()
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    else:
        raise ValueError(action)


def _join() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def _barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


if __name__ == "__main__":
    main()
