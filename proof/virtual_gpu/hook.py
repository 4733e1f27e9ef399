"""Override torch's operations as soon as a process imports torch; a .pth file of the environment imports this."""

import importlib.abc
import importlib.util
import os
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            from virtual_gpu import aten

            aten.install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("VIRTUAL_GPU_RULE"):
    sys.meta_path.insert(0, _Finder())
