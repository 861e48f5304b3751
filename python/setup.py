"""Takes libnebula-i along into the package when the checkout has built one. Nothing is compiled here.

The wheel is then one for this platform; without a library it is pure Python, and the library is looked for at run time.
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
