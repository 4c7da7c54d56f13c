"""The entry point of installations made before there was `flowccl_autoload`: `import torch` must not fail with them."""


def autoload() -> None:
    """Do what `flowccl_autoload` does, or say in one line that flowccl must be installed again."""
    try:
        from flowccl_autoload import autoload as load
    except ModuleNotFoundError:
        import logging

        text = "flowccl: not used: the installation is older than flowccl's sources; install flowccl again"
        logging.getLogger("flowccl.torch").warning(text)
        return
    load()
