"""Clients: packages from the index that run on the library unchanged.

`make clients` (`python -m tests.clients`) runs every file of `tasks/` on PyTorch and on the library
under the mock, compares the values that both hand over, and writes the table of docs/CLIENTS.md.

To add a client, write `tasks/NAME.py`:

    '''A training loop with accumulation and clipping.'''      # column 2 of the table

    from tests.clients.inputs import fill, numbers

    PACKAGES = "accelerate safetensors"     # for pip; the first one gives the version

    def task_loop(torch):                   # every function `task_...` is a task of the client
        from accelerate import Accelerator  # packages are imported within tasks
        ...
        return {"losses": losses, "weight": model.weight}

A task is given PyTorch or the library as `torch`, and returns values by name: tensors, arrays,
numbers, texts, lists of them. Nothing may depend on random draws, which differ; `inputs.py` has
numbers and weights that both sides share. Integers and texts must be equal, other numbers within
TOLERANCE (1e-4 unless the file says otherwise) of the largest. `TIME_LIMIT_S` (300) is for one
side. `REFUSED = {"task_x": "torch.fx"}` names a feature that the library refuses on purpose: there
the task must stop.

    make clients                     all that changed: in file, packages or library
    make clients ONLY=timm,peft      these two
    make clients AGAIN=1 FRESH=1     all, and with the newest packages
"""
