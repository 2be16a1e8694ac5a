"""The layers, one file per kind. Their classes are found here, too (oneflow/api)."""

from pathlib import Path

from oneflow.surfaces import open_module

FILES = tuple(sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py")))
"""Programs name a layer with its file, too: `nn.modules.linear.Linear`."""

open_module(__name__, "nn", FILES)
