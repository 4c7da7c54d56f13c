"""The version is a public attribute of the package."""

import subprocess
import sys

import flowccl
from flowccl.version import VERSION


def test_the_package_has_a_version():
    assert flowccl.__version__ == VERSION == flowccl.VERSION


def test_the_version_is_loaded_on_first_use():
    code = "import sys, flowccl; before = 'flowccl.version' in sys.modules; print(before, flowccl.__version__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"False {VERSION}\n"
