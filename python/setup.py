"""Puts libnebula-i into the package if the checkout has built it. Nothing is compiled here.

With the library the wheel is for this platform. Without it the wheel is pure Python, and the package looks for the library
at run time.
"""

import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

BUILT = pathlib.Path(__file__).resolve().parent.parent / "build" / "release" / "libnebula-i.so"


class WithLibrary(build_py):
    def run(self):
        super().run()
        if BUILT.exists() and not self.editable_mode:
            target = pathlib.Path(self.build_lib) / "nebula_i" / "libnebula-i.so.0"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(BUILT, target)


class Platform(Distribution):
    def has_ext_modules(self):
        return BUILT.exists()


setup(cmdclass={"build_py": WithLibrary}, distclass=Platform)
