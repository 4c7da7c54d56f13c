"""The version of flowccl."""

VERSION = "0.1.0"
